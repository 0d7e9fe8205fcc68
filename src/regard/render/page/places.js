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

// The text in a normal form, with the index of each character's origin, and of the end.
const normal = (text, exact) => {
  const made = [];
  const starts = [];
  for (let start = 0; start < text.length; ) {
    let end = start + 1;
    while (end < text.length && BELONGS.test(text[end])) end += 1;
    let part = text.slice(start, end).join("").normalize(exact ? "NFC" : "NFKC");
    if (!exact) part = part.toLowerCase().toUpperCase().toLowerCase().normalize("NFKC");
    const letters = [...part];
    letters.forEach((_, at) => starts.push(letters.length === end - start ? start + at : start));
    made.push(...letters);
    start = end;
  }
  return { made, starts: [...starts, text.length] };
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

const matches = (spelled, name, kind, exact) => {
  const { made, starts } = normal(spelled.text, exact);
  const wanted = normal([...name], exact).made;
  const found = [];
  let after = 0;
  for (let at = 0; wanted.length && at + wanted.length <= made.length; at += 1) {
    if (!wanted.every((letter, next) => made[at + next] === letter)) continue;
    const start = starts[at];
    const end = starts[at + wanted.length];
    if (at && starts[at - 1] === start && made[at - 1] !== wanted[0]) continue; // it begins within a character
    const tokens = [...new Set(spelled.owners.slice(start, end).flat())].sort((one, other) => one - other);
    if (start >= after && tokens.length && kinds[kind](spelled, start) && kinds[kind](spelled, end)) {
      found.push(tokens);
      after = end;
    }
  }
  return found;
};

const specials = ({ texts, marks }, name) => {
  const wanted = normal([...name], false).made.join("");
  return texts.flatMap((text, at) => (marks[at] & 2 && normal([...text], false).made.join("") === wanted ? [[at]] : []));
};

const best = (spelled, name) => {
  for (const kind of ["word", "letters", "token"]) {
    for (const exact of [true, false]) {
      const found = matches(spelled, name, kind, exact);
      if (found.length) return found;
    }
  }
  return specials(spelled, name);
};

const numbered = (spelled, name, number) => {
  for (const kind of ["word", "letters", "token", "special", "part"]) {
    let any = false;
    for (const exact of [true, false]) {
      const found = kind === "special" ? specials(spelled, name) : matches(spelled, name, kind, exact);
      if (number && Math.abs(number) <= found.length) return [found.at(number > 0 ? number - 1 : number)];
      any ||= found.length > 0;
    }
    if (any) return [];
  }
  return [];
};

const range = (first, last) => Array.from({ length: last - first + 1 }, (_, at) => first + at);

// Places as lists of tokens, that which `--token` means first, and after it the others of the same name.
export const findPlaces = (stream, typed) => {
  const name = typed.trim().replace(/\s+/gu, " ");
  if (!name) return [];
  const spelled = spell(stream);
  const count = stream.texts.length;
  const found = best(spelled, name);
  const parts = matches(spelled, name, "part", false);
  if (found.length) {
    const every = [...found, ...matches(spelled, name, "word", false), ...parts];
    return [...new Map(every.map((tokens) => [String(tokens), tokens])).values()];
  }
  const tag = name.match(/^(.*\S)#(-?\d{1,9})$/su);
  if (tag) return numbered(spelled, tag[1], Number(tag[2]));
  if (/^-?\d{1,9}$/u.test(name)) {
    const at = Number(name) > 0 ? Number(name) - 1 : count + Number(name);
    if (Number(name) && at >= 0 && at < count) return [[at]];
  }
  const span = name.match(/^(\d{1,9}):(\d{1,9})$/u)?.slice(1).map(Number);
  if (span && span[0] >= 1 && span[0] <= span[1] && span[1] <= count) return [range(span[0] - 1, span[1] - 1)];
  return parts;
};
