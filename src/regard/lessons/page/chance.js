// Numbers by chance that are the same wherever a seed is the same.

// A function of no arguments: numbers from 0 to 1, each once (mulberry32, a public-domain generator by Tommy Ettinger).
export const random = (seed) => {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4294967296;
  };
};

// A matrix of numbers around 0 with one decimal, nearly all from −2.5 to 2.5 (sums of four uniform numbers, spread
// like a normal distribution of that standard deviation).
export const randomMatrix = (rows, columns, seed, deviation = 1) => {
  const chance = random(seed);
  const normal = () => (chance() + chance() + chance() + chance() - 2) * Math.sqrt(3);
  return Array.from({ length: rows }, () =>
    Array.from({ length: columns }, () => Math.round(normal() * deviation * 10) / 10 + 0),
  );
};

export const identity = (size) =>
  Array.from({ length: size }, (_, row) => Array.from({ length: size }, (_, column) => Number(row === column)));
