const unpack = id => {
  const bytes = Uint8Array.from(atob(document.getElementById(id).textContent), c => c.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream('gzip'))).text();
};
let figures = {};
const color = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
function scheme(printing, count) {
  const ink = printing ? '#000' : color('--ink'), line = printing ? '#ccc' : color('--line');
  const axis = name => ({[name + '.gridcolor']: line, [name + '.linecolor']: line, [name + '.tickcolor']: line});
  // Labels inside the plot have the page's background color, so lines do not run through them.
  const paper = printing ? '#fff' : color('--page');
  const labels = Object.fromEntries(Array.from({length: count}, (_, i) => [`annotations[${i}].bgcolor`, paper]));
  const bar = {'modebar.bgcolor': paper, 'modebar.color': color('--soft'), 'modebar.activecolor': ink};
  return {'font.color': ink, ...bar, ...labels, ...axis('xaxis'), ...axis('yaxis')};
}
const elements = [...document.querySelectorAll('.figure')];
const draw = () => { for (const element of elements) {
  const figure = figures[element.id];
  const narrow = window.innerWidth < 600;
  Plotly.newPlot(element, figure.data, figure.layout, {
    responsive: true, displaylogo: false, displayModeBar: narrow ? false : 'hover',
    // The full mode bar would cover the legend, and one of its buttons uploads the chart.
    modeBarButtons: [['toImage', 'resetScale2d']],
  });
} };
const repaint = printing => elements.forEach(element => {
  const annotations = figures[element.id].layout.annotations || [];
  Plotly.relayout(element, scheme(printing, annotations.length));
});
(async () => {
  const code = document.createElement('script');
  [figures, code.textContent] = [JSON.parse(await unpack('figures')), await unpack('plotly')];
  document.head.append(code);
  draw();
  repaint(false);
  document.body.className = 'drawn';
})();
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => repaint(false));
// The paper's width is not known here; 660 px, or two columns of 325 px, fit A4 and Letter.
const printed = element => element.parentElement.classList.contains('several') ? 325 : 660;
addEventListener('beforeprint', () => {
  repaint(true);
  elements.forEach(element => Plotly.relayout(element, {width: printed(element)}));
});
addEventListener('afterprint', () => {
  repaint(false);
  elements.forEach(element => Plotly.relayout(element, {width: null, autosize: true}));
});
for (const button of document.querySelectorAll('th button')) button.addEventListener('click', () => {
  const head = button.parentElement, body = head.closest('table').tBodies[0];
  const down = head.getAttribute('aria-sort') === 'ascending';
  for (const other of head.parentElement.children) other.removeAttribute('aria-sort');
  head.setAttribute('aria-sort', down ? 'descending' : 'ascending');
  const key = row => row.cells[head.cellIndex].dataset.value;
  const compare = (a, b) => {
    const x = key(a), y = key(b);
    if (x === '' || y === '') return (x === '') - (y === '');
    const order = isNaN(x) || isNaN(y) ? x.localeCompare(y) : x - y;
    return down ? -order : order;
  };
  body.append(...[...body.rows].sort(compare));
});
