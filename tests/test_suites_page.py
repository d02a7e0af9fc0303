"""The page of suites has what the files of the suites say."""

from suites_page import FILE, page


def test_the_table_is_what_the_script_writes() -> None:
    text = FILE.read_text("utf-8")
    assert page(text) == text, "run python scripts/suites_page.py"
