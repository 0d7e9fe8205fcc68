// What is recorded of real models: files of lessons/data by their names, and what a lesson brings of its own.

export const recorded = JSON.parse(document.getElementById("data").textContent);
