// The token under the pointer, or chosen with the arrow keys, shades the parts by their scores for it.
const data = JSON.parse(document.getElementById("scores").textContent);
const pieces = [...document.querySelectorAll(".piece")];
const parts = [...document.querySelectorAll(".part")];
const answer = document.getElementById("answer");
const says = document.getElementById("says");
let chosen = null; // by click or key; the pointer overrides it while it is on a token

const show = (token) => {
  const scores = token === null ? data.scores : data.tokens[token];
  const most = Math.max(...scores, 1e-9);
  parts.forEach((part) => {
    const score = scores[Number(part.dataset.p)];
    part.style.setProperty("--share", Math.max(0, score / most));
    part.classList.toggle("none", score < 0.05 * most || score < 0.005);
    part.querySelector("sup").textContent = score.toFixed(2);
  });
  pieces.forEach((piece) => {
    const here = Number(piece.dataset.t) === token;
    piece.classList.toggle("chosen", here);
    piece.setAttribute("aria-selected", here);
  });
  if (token === null) answer.removeAttribute("aria-activedescendant");
  else answer.setAttribute("aria-activedescendant", `t${token}`);
  const best = scores.indexOf(Math.max(...scores));
  const part = parts.find((one) => Number(one.dataset.p) === best);
  const what = token === null ? "The whole answer" : `“${pieces[token].textContent.trim()}”`;
  says.textContent = `${what}: most from ${part.title} (${scores[best].toFixed(2)})`;
};

const choose = (token) => {
  chosen = token;
  show(token);
};

pieces.forEach((piece) => {
  const token = Number(piece.dataset.t);
  piece.addEventListener("pointerenter", () => show(token));
  piece.addEventListener("pointerleave", () => show(chosen));
  piece.addEventListener("click", () => choose(chosen === token ? null : token));
});
answer.addEventListener("keydown", (event) => {
  const last = pieces.length - 1;
  const next = { ArrowRight: chosen === null ? 0 : Math.min(chosen + 1, last), ArrowLeft: chosen === null ? last : Math.max(chosen - 1, 0),
    Home: 0, End: last, Escape: null };
  if (!(event.key in next)) return;
  event.preventDefault();
  choose(next[event.key]);
});
show(null);
