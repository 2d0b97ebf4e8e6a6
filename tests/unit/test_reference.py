"""docs/reference.md: every key of conf/ with its default and meaning."""

from make_reference import CONF, GROUPS, PAGE, reference


def test_the_page_is_what_conf_says_today() -> None:
    assert PAGE.read_text() == reference(), "run `make reference`"


def test_every_key_says_what_it_means() -> None:
    rows = [line for line in reference().splitlines() if line.startswith("| `")]
    assert len(rows) > 100
    assert [row for row in rows if row.endswith("|  |")] == []


def test_every_file_of_a_group_is_on_the_page() -> None:
    options = [f"### {group}={file.stem}\n" for group in GROUPS for file in (CONF / group).glob("*.yaml")]
    assert len(options) > 20
    assert [option for option in options if option not in reference()] == []
