// The tokens that a name means, by the rules of record/places.py: whole words first, then what letters end beside,
// then whole tokens, special tokens by their own text, and what lies inside of tokens only if there is nothing else.

const NUMBERED = /[⁰¹²³⁴⁵⁶⁷⁸⁹]+$/u;
const LETTER = /[\p{L}\p{N}\p{M}]/u;
const BELONGS = /[\p{M}\u1160-\u11ff\u200d\uff9e\uff9f]/u;
const BLANK = /^[␣↵⇥]+$/u;
const EDGE = "\0"; // a special token, between two texts

const numberOf = (text) => Number((text.match(NUMBERED)?.[0] ?? "0").normalize("NFKC"));
const bare = (text) => [...text.replace(NUMBERED, "")];

// The characters that begin in a token, and whether it has further bytes of the one before: 貓¹ 貓² is 貓.
const ownText = (texts, at) => {
  if (BLANK.test(texts[at])) return [[" "], false];
  const number = numberOf(texts[at]);
  const whole = bare(texts[at]);
  const before = texts[at - 1] ?? "";
  const after = texts[at + 1] ?? "";
  if (number > 1 && numberOf(before) === number - 1 && whole.length && bare(before).at(-1) === whole[0]) {
    return [whole.slice(1), true];
  }
  if (number === 1 && whole.length && numberOf(after) === 2 && bare(after)[0] === whole.at(-1)) return [whole, false];
  return [[...texts[at]], false];
};

const spell = ({ texts, marks, words }) => {
  const text = [];
  const owners = [];
  texts.forEach((token, at) => {
    if (marks[at] & 2 && !BLANK.test(token)) {
      text.push(EDGE);
      owners.push([]);
      return;
    }
    const [own, shared] = ownText(texts, at);
    const blank = own.join("") === " ";
    if (shared && owners.length) owners.at(-1).push(at);
    if (!shared && (marks[at] & 5 || blank) && text.length && ![" ", EDGE].includes(text.at(-1))) {
      text.push(" ");
      owners.push(blank ? [at] : []);
    } else if (blank && text.at(-1) === " ") owners.at(-1).push(at);
    if (blank) return;
    text.push(...own);
    owners.push(...own.map(() => [at]));
  });
  const word = texts.map((_, at) => at);
  for (const [start, stop] of words) word.fill(start, start, stop);
  return { texts, marks, text, owners, word };
};

const ALPHABET = /^[a-z\u00df-\u024f\u0370-\u03ff\u0400-\u04ff\u1e00-\u1fff]/u;
const between = (text, at) => at > 0 && at < text.length - 1 && LETTER.test(text[at - 1]) && LETTER.test(text[at + 1]);

// The text as it is compared: NFKC, without case, and without spaces beside marks; with the bounds of each character.
const normal = (text, accents = true) => {
  const made = [];
  const bounds = [];
  for (let start = 0; start < text.length; ) {
    let end = start + 1;
    while (end < text.length && BELONGS.test(text[end])) end += 1;
    let part = text.slice(start, end).join("").normalize("NFKC");
    part = part === "ı" ? part : part.toLowerCase().toUpperCase().toLowerCase().normalize("NFKC");
    if (!accents && ALPHABET.test(part)) part = part.normalize("NFKD").replace(/\p{Mn}/gu, "");
    const letters = [...part];
    const [first, last] = [start, end];
    letters.forEach((_, at) =>
      bounds.push(letters.length === last - first ? [first + at, first + at + 1] : [first, last]),
    );
    made.push(...letters);
    start = end;
  }
  const kept = made.map((_, at) => at).filter((at) => made[at] !== " " || between(made, at));
  return {
    made: kept.map((at) => made[at]),
    starts: [...kept.map((at) => bounds[at][0]), text.length],
    ends: kept.map((at) => bounds[at][1]),
  };
};

const kinds = {
  word: ({ owners, word }, at) => !at || at === owners.length || apart(owners, at, word),
  letters: ({ text }, at) =>
    !at || at === text.length || !(BELONGS.test(text[at]) || (LETTER.test(text[at - 1]) && LETTER.test(text[at]))),
  token: ({ owners }, at) => !at || at === owners.length || apart(owners, at, null),
  part: () => true,
};
const apart = (owners, at, word) => {
  const [here, there] = [owners[at - 1], owners[at]];
  if (!here.length || !there.length) return true;
  return word ? word[here.at(-1)] !== word[there[0]] : here.at(-1) !== there[0];
};

const found = (spelled, name, kind, accents) => {
  const { made, starts, ends } = normal(spelled.text, accents);
  const wanted = normal([...name], accents).made;
  const places = [];
  let after = 0;
  for (let at = 0; wanted.length && at + wanted.length <= made.length; at += 1) {
    if (!wanted.every((letter, next) => made[at + next] === letter)) continue;
    const last = at + wanted.length - 1;
    const [start, end] = [starts[at], ends[last]];
    if ((at && starts[at - 1] === start) || starts[last + 1] < end) continue; // it begins or ends within a character
    const tokens = [...new Set(spelled.owners.slice(start, end).flat())].sort((one, other) => one - other);
    if (start >= after && tokens.length && kinds[kind](spelled, start) && kinds[kind](spelled, end)) {
      places.push(tokens);
      after = end;
    }
  }
  return places;
};

const specials = ({ texts, marks }, name) => {
  const wanted = normal([...name]).made.join("");
  return texts.flatMap((text, at) => (marks[at] & 2 && normal([...text]).made.join("") === wanted ? [[at]] : []));
};

const matches = (spelled, name, kind) => {
  if (kind === "special") return specials(spelled, name);
  const places = found(spelled, name, kind, true);
  return places.length ? places : found(spelled, name, kind, false);
};

const first = (spelled, name, among) => {
  for (const kind of among) {
    const places = matches(spelled, name, kind);
    if (places.length) return places;
  }
  return [];
};
const WHOLE = ["word", "letters", "token", "special"];

// Of scripts without spaces, where no one sees where tokens end, all occurrences count.
const UNSPACED = /[\p{scx=Han}\p{scx=Hira}\p{scx=Kana}\p{scx=Bopo}\p{sc=Thai}\p{sc=Lao}\p{sc=Khmer}\p{sc=Mymr}\p{sc=Tibt}]/u;
const named = (spelled, name, among) => first(spelled, name, UNSPACED.test(name) ? ["part", "special"] : among);

const numbered = (spelled, name, number) => {
  const places = named(spelled, name, [...WHOLE, "part"]);
  const place = number ? places.at(number > 0 ? number - 1 : number) : undefined;
  return place ? [place] : [];
};

const range = (first, last) => Array.from({ length: last - first + 1 }, (_, at) => first + at);

// Places as lists of tokens, that which `--token` means first, and after it the others of the same name.
export const findPlaces = (stream, typed) => {
  const name = typed.trim().replace(/\s+/gu, " ");
  if (!name) return [];
  const spelled = spell(stream);
  const count = stream.texts.length;
  const all = named(spelled, name, WHOLE);
  const whole = matches(spelled, name, "word").map(String);
  const best = [...all.filter((one) => whole.includes(String(one))).slice(0, 1), ...all];
  const parts = matches(spelled, name, "part");
  if (best.length) {
    const every = [...best, ...parts];
    return [...new Map(every.map((tokens) => [String(tokens), tokens])).values()];
  }
  const plain = name.normalize("NFKC");
  const tag = plain.match(/^(.*\S)#(-?\d{1,9})$/su);
  if (tag) return numbered(spelled, tag[1], Number(tag[2]));
  if (/^-?\d{1,9}$/u.test(plain)) {
    const at = Number(plain) > 0 ? Number(plain) - 1 : count + Number(plain);
    if (Number(plain) && at >= 0 && at < count) return [[at]];
  }
  const span = plain.match(/^(\d{1,9}):(\d{1,9})$/u)?.slice(1).map(Number);
  if (span && span[0] >= 1 && span[0] <= span[1] && span[1] <= count) return [range(span[0] - 1, span[1] - 1)];
  return parts;
};
