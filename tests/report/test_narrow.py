"""Tests that cells carry their column's name, which a phone shows instead of the headings."""

import re
from pathlib import Path

from nemo_vfm.report.page import render
from nemo_vfm.report.parts.section import with_data_labels

TABLE = """<table class="counts"><thead><tr><th scope="col"></th><th scope="col" class="n">clips</th>
<th scope="col"><span class="hidden">sh&#34;are</span></th></tr></thead>
<tbody><tr><th scope="row">a</th><td class="n">1</td><td>2</td></tr><tr><td>b</td><td>3</td></tr></tbody></table>"""


def test_each_cell_has_its_columns_name_and_a_column_without_one_stays():
    cells = re.findall(r"<td.*?</td>", with_data_labels(TABLE))
    assert cells == ['<td data-label="clips" class="n">1</td>', '<td data-label="sh&#34;are">2</td>',
                     "<td>b</td>", '<td data-label="clips">3</td>']  # fmt: skip


def test_a_table_without_headings_and_other_html_stay():
    for html in ("<p><td>x</td></p>", "<table><tbody><tr><td>x</td></tr></tbody></table>"):
        assert with_data_labels(html) == html


def test_every_table_of_a_report_is_labelled(folder: Path):
    tables = re.findall(r"<table.*?</table>", render(folder), re.DOTALL)
    headed = [table.partition("<tbody>") for table in tables if "<thead" in table]
    assert len(headed) > 4
    for head, _, body in headed:
        names = re.findall(r"<th\b[^>]*>(?:<span[^>]*>)?([^<]+)", head)
        assert set(re.findall(r'data-label="([^"]*)"', body)) <= set(names)
        assert body.count("<td data-label=") >= body.count("<tr")
