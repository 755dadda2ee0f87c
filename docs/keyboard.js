// What scrolls can be focused, so that the arrow keys scroll it; each bar of a program has its name.
function reachByKeyboard() {
  for (const box of document.querySelectorAll("pre > code, .md-typeset__scrollwrap")) {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0
  }
  document.querySelectorAll(".md-code__nav").forEach((bar, count) => {
    bar.setAttribute("aria-label", `Program ${count + 1}`)
  })
}
window.addEventListener("load", reachByKeyboard)
window.addEventListener("resize", reachByKeyboard)
