// Numbers as they are shown and as they are typed.

export const LARGEST = 1e70; // of a number, as in matrices that `regard steps` reads

const MOST_DIGITS = 9; // as in the readout; beyond them, a number is what it was rounded to

// At least 3 significant digits; more would hide the pattern, and the exact value is in the readout. Only what is
// nearly 1 gets more of them: a weight of 0.99975 is not all of the sum.
const plain = (value, least) => {
  const size = Math.abs(value);
  let digits = least;
  while (size !== 1 && digits < MOST_DIGITS && Number(size.toPrecision(digits)) === 1) digits++;
  if (Number(size.toPrecision(digits)) === 1) return value < 0 ? "-1" : "1";
  if (size >= 1e7 || (size > 0 && size < 1e-4)) {
    const [mantissa, exponent] = value.toExponential(digits - 1).split("e");
    return `${Number(mantissa)}e${Number(exponent)}`;
  }
  return size >= 10 ** digits ? String(Math.round(value)) : String(Number(value.toPrecision(digits)));
};

const written = (value, digits) => {
  if (typeof value === "boolean") return value ? "1" : "0";
  if (value === Infinity) return "∞";
  if (value === -Infinity) return "−∞";
  if (value === 0) return "0";
  return plain(value, digits).replaceAll("-", "−");
};

export const format = (value) => written(value, 3);
export const formatExactly = (value) => written(value, 9);
export const isRounded = (value) =>
  Number.isFinite(value) && Number(format(value).replaceAll("−", "-")) !== Number(value);

const NUMBER = /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i;

// What a reader typed: { value }, or { trouble } with the key of a sentence. Full-width digits are digits too.
export const readNumber = (text) => {
  const normal = text.normalize("NFKC").replaceAll("−", "-").replaceAll("。", ".").trim();
  if (!normal) return { trouble: "emptyCell" };
  if (/^[+-]?\d+,\d+$/.test(normal)) return { trouble: "comma" };
  if (!NUMBER.test(normal)) return { trouble: "notNumber" };
  const value = Number(normal) + 0;
  return Math.abs(value) > LARGEST ? { trouble: "tooLarge" } : { value };
};

// How far a number moves at a time: a tenth of the size of the largest number beside it, as a power of ten.
export const stepOf = (values) => {
  const largest = values.flat().reduce((most, value) => Math.max(most, Math.abs(value)), 0);
  return largest > 0 ? 10 ** (Math.floor(Math.log10(largest) + 1e-9) - 1) : 0.1;
};
export const moved = (value, count, step) => {
  const result = Number((value + count * step).toPrecision(12));
  return Math.abs(result) < step / 1e6 ? 0 : Math.max(-LARGEST, Math.min(LARGEST, result));
};
