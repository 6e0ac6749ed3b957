"""Lists tables of videos and captions with a row at fault, as name, content and words of the error that names it."""

_GOOD = b"a.mp4,fine\n"

ODD_TABLES = [
    ("t.csv", b"video,caption\n" + _GOOD + b"b.mp4,a car, at night\n", "row 2 .*line 3 has 3 fields, .* 2 columns"),
    ("t.csv", b"video,caption\n" + _GOOD + b"b.mp4\n", "row 2 .*line 3 has 1 fields, .* 2 columns"),
    ("t.csv", b'video,caption\na.mp4,"two\nlines"\nb.mp4,a "b", c\n', "row 2 .*line 4 has 3 fields"),
    ("t.csv", b'video,caption\na.mp4,"a "quoted" word"\n', "row 1 of .*cannot be read: "),
    ("t.csv", b"video,caption\n" + _GOOD + b"b.mp4,caf\xe9\n", "row 2 .*line 3 is not UTF-8 .*save the table as UTF-8"),
    ("t.csv", "video,caption\na.mp4,x\n".encode("utf-16"), "line 1 is not UTF-8"),
    ("t.csv", b"video,caption,caption\na.mp4,x,y\n", "two columns 'caption'"),
    ("t.jsonl", b'{"video": "a.mp4", "caption": ["one", "two"]}\n', r"row 1 \(line 1\) .* a list under 'caption'"),
    ("t.jsonl", b'\n{"video": "a.mp4", "caption": {"short": "x"}}\n', r"row 1 \(line 2\) .* an object under 'caption'"),
    ("t.jsonl", b'{"video": "a.mp4", "caption": 3.5}\n', r"row 1 \(line 1\) .* a number under 'caption'"),
    ("t.jsonl", b'{"video": "a.mp4", "caption": ""}\n{"video": "b.mp4"}\n', "row 2 .*line 2 has no column caption"),
]  # fmt: skip
