const cells = row => [...row.cells].map(cell => cell.textContent);
const words = {'\\': '\\textbackslash{}', '~': '\\textasciitilde{}', '^': '\\textasciicircum{}'};
const latex = text =>
  text.replace(/[\\&%$#_{}~^]/g, c => words[c] || '\\' + c).replace(/±/g, '$\\pm$');
const formats = {
  CSV: rows => rows.map(row => row.map(c => '"' + c.replace(/"/g, '""') + '"').join(',')).join('\n'),
  LaTeX: rows => '\\begin{tabular}{l' + 'r'.repeat(rows[0].length - 1) + '}\n'
    + rows.map(row => row.map(latex).join(' & ') + ' \\\\').join('\n') + '\n\\end{tabular}\n',
};
const offer = (place, text, name, href) => {
  const link = document.createElement('a');
  Object.assign(link, {textContent: text, download: name, href: href});
  place.append(link);
};
document.querySelectorAll('table:not(.facts)').forEach((table, number) => {
  const place = document.createElement('p');
  place.className = 'export';
  for (const [kind, write] of Object.entries(formats)) {
    const name = 'table' + (number + 1) + (kind === 'CSV' ? '.csv' : '.tex');
    const text = encodeURIComponent(write([...table.rows].map(cells)) + '\n');
    offer(place, kind, name, 'data:text/plain;charset=utf-8,' + text);
  }
  table.parentNode.insertBefore(place, table.nextSibling);
});
document.querySelectorAll('figure').forEach((figure, number) => {
  const image = figure.querySelector('img');
  offer(figure.querySelector('.export'), 'SVG', 'figure' + (number + 1) + '.svg', image.src);
});
for (const button of document.querySelectorAll('th button')) button.onclick = () => {
  const head = button.parentNode, table = head.closest('table'), place = head.cellIndex;
  const down = head.ariaSort === 'ascending';
  const value = row => row.cells[place].textContent;
  const order = (a, b) => {
    const [x, y] = [parseFloat(value(a)), parseFloat(value(b))];
    return isNaN(x) || isNaN(y) ? value(a).localeCompare(value(b)) : x - y;
  };
  const rows = [...table.rows].slice(1).sort(order);
  if (down) rows.reverse();
  for (const other of table.rows[0].cells) other.removeAttribute('aria-sort');
  head.ariaSort = down ? 'descending' : 'ascending';
  rows.forEach(row => row.parentNode.append(row));
};
