// What scrolls can be focused, so that the arrow keys scroll it; each bar of a program has its name,
// and each part of a table of contents that of the part which it is in.
function reachByKeyboard() {
  const scrolling = "pre > code, .md-typeset__scrollwrap, .highlight-ipynb, .jp-OutputArea-output pre"
  for (const box of document.querySelectorAll(scrolling)) {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0
  }
  document.querySelectorAll(".md-code__nav").forEach((bar, count) => {
    bar.setAttribute("aria-label", `Program ${count + 1}`)
  })
}
function nameContents() {
  for (const part of document.querySelectorAll(".md-nav--secondary nav.md-nav")) {
    const outer = part.parentElement.closest("nav").getAttribute("aria-label")
    part.setAttribute("aria-label", `${outer}: ${part.getAttribute("aria-label")}`)
  }
}
window.addEventListener("load", reachByKeyboard)
window.addEventListener("load", nameContents)
window.addEventListener("resize", reachByKeyboard)
