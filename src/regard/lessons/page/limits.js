// What a page holds at most. Python reads the same object (lessons/limits.py), so it is written as JSON.

export const LIMITS = {
  "tokens": 32,
  "heads": 8,
  "width": 512,
  "characters": 64,
  "number": 1e70,
  "bytes": 2000000,
  "count": 1048576,
  "scores": 12,
  "factor": [1, 10],
  "patternLength": [3, 24]
};
