"""STRING's files are read exactly, or refused with one sentence that names file and line."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from metapt.domains.ppi.data import string_files as module
from metapt.domains.ppi.data.string_files import CHANNELS, Links, read_links, read_terms
from metapt.errors import DataError

from ...shared_files import shared
from .small_graphs import DETAILED, write_lines

LATER = "experiments experiments_transferred database database_transferred textmining textmining_transferred"
FULL = (
    "protein1 protein2 neighborhood neighborhood_transferred fusion cooccurence homology coexpression "
    f"coexpression_transferred {LATER} combined_score"
)
PHYSICAL = f"protein1 protein2 homology {LATER} combined_score"
LINKS = [
    DETAILED,
    "7.b 7.a 0 0 0 0 500 0 0 500",
    "7.a 7.b 0 0 0 0 500 0 0 500",
    "7.a 7.c 100 0 0 0 0 0 9 150",
    "7.c 7.a 100 0 0 0 0 0 9 150",
    "7.d 7.b 1 2 3 4 5 6 7 1000",
    "7.d 7.d 1 2 3 4 5 6 7 1000",
    "7.e 7.e 1 2 3 4 5 6 7 1000",
]
TERMS = [
    "#string_protein_id\tcategory\tterm\tdescription",
    '7.a\tBiological Process (Gene Ontology)\tGO:2\ta "quoted term',
    "7.a\tMolecular Function (Gene Ontology)\tGO:1\tα, β",
    "7.c\tBiological Process (Gene Ontology)\tGO:2\ta \"quoted term",
    "7.c\tReactome Pathways\tMAP-1\tanother category",
    "7.x\tCellular Component (Gene Ontology)\tGO:3\t",
    "7.d\tMolecular Function (Gene Ontology)\tGO:1\tα, β",
    "7.d\tMolecular Function (Gene Ontology)\tGO:1\tα, β",
]  # fmt: skip


def edges(links: Links) -> dict[tuple[str, str], list[str]]:
    """Return pairs of names -> evidence channels."""
    assert (links.edges[:, 0] < links.edges[:, 1]).all()
    assert len(np.unique(links.edges, axis=0)) == len(links.edges)
    return {
        (links.proteins[i], links.proteins[j]): [channel for bit, channel in enumerate(CHANNELS) if bits >> bit & 1]
        for (i, j), bits in zip(links.edges.tolist(), links.bits.tolist(), strict=True)
    }


@pytest.fixture(params=[module._BLOCK, 40], ids=["at once", "in blocks"])
def blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Set the size of blocks; a header is longer than the smaller one."""
    monkeypatch.setattr(module, "_BLOCK", max(request.param, 120))
    return int(request.param)


def test_links_are_united_over_both_directions(tmp_path: Path, blocks: int) -> None:
    links = read_links(write_lines(tmp_path / "links.txt.gz", LINKS), 7)
    assert links.proteins.tolist() == ["7.a", "7.b", "7.c", "7.d"]
    assert (links.read, links.kept) == (7, 5)
    assert edges(links) == {
        ("7.a", "7.b"): ["experiments"],
        ("7.a", "7.c"): ["neighborhood", "textmining"],
        ("7.b", "7.d"): list(CHANNELS),
    }


@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_files_of_any_editor_are_read(tmp_path: Path, mark: str, newline: str) -> None:
    (tmp_path / "links.gz").write_bytes(gzip.compress((mark + "".join(line + newline for line in LINKS)).encode()))
    (tmp_path / "terms.gz").write_bytes(gzip.compress((mark + "".join(line + newline for line in TERMS)).encode()))
    links = read_links(write_lines(tmp_path / "plain.gz", LINKS), 7)
    assert edges(read_links(tmp_path / "links.gz", 7)) == edges(links)
    found = read_terms(tmp_path / "terms.gz", 7, links.proteins)
    assert found.terms.equals(read_terms(write_lines(tmp_path / "plain.gz", TERMS), 7, links.proteins).terms)


def test_names_that_are_numbers_stay_apart(tmp_path: Path) -> None:
    links = read_links(write_lines(tmp_path / "links.gz", [DETAILED, "7.1 7.10 0 0 0 0 500 0 0 500"]), 7)
    assert links.proteins.tolist() == ["7.1", "7.10"]
    terms = [TERMS[0], *(f"7.10\tMolecular Function (Gene Ontology)\t{term}\t1" for term in ("01", "1"))]
    found = read_terms(write_lines(tmp_path / "terms.gz", terms), 7, links.proteins)
    assert found.terms.index.tolist() == ["01", "1"]
    assert found.pairs.tolist() == [[1, 0], [1, 1]]


@pytest.mark.parametrize(("score", "left"), [(0, 3), (150, 3), (151, 2), (500, 2), (501, 1), (1000, 1)])
def test_the_score_is_reached_or_the_link_is_left_out(tmp_path: Path, score: int, left: int) -> None:
    """The evidence of the directions that reach the score counts."""
    links = read_links(write_lines(tmp_path / "links.txt.gz", LINKS), 7, score)
    assert len(links.edges) == left
    assert set(np.unique(links.edges)) == set(range(len(links.proteins)))  # a protein has a link
    lines = [DETAILED, "7.a 7.b 1 0 0 0 0 0 0 400", "7.b 7.a 0 1 0 0 0 0 0 500", "7.b 7.a 0 0 1 0 0 0 0 300"]
    found = read_links(write_lines(tmp_path / "links.txt.gz", lines), 7, 400)
    assert edges(found) == {("7.a", "7.b"): ["neighborhood", "fusion"]}


@pytest.mark.parametrize("header", [DETAILED, FULL, PHYSICAL])
def test_channels_are_found_by_the_header(tmp_path: Path, header: str) -> None:
    """Direct and transferred evidence are united, and homology is none; there is one link for each column."""
    columns = header.split()[2:-1]
    scores = np.eye(len(columns), dtype=int)
    lines = [" ".join([f"7.x{i:02d}", "7.y", *map(str, scores[i]), "900"]) for i in range(len(columns))]
    found = edges(read_links(write_lines(tmp_path / "links.txt.gz", [header, *lines]), 7))
    for i, column in enumerate(columns):
        name = column.removesuffix("_transferred").replace("experimental", "experiments")
        assert found[f"7.x{i:02d}", "7.y"] == ([] if name == "homology" else [name])


@pytest.mark.parametrize(
    ("line", "text", "message"),
    [
        (1, "protein1 protein2 combined_score", "there is no evidence channel; take the file .* detailed or full"),
        (1, DETAILED.replace("fusion", "fission"), "'fission' is no evidence channel; legal: neighborhood, fusion, c"),
        (1, DETAILED.replace(" ", "\t"), "the columns are .*, and protein1 protein2 ... combined_score are expected"),
        (1, "\x00\xff", "the columns are"),
        (4, "7.a 7.c 100 0 0 0 0 0 9", "10 columns are expected, as in the header"),
        (8, "7.a", "10 columns are expected"),
        (3, "8.a 7.b 0 0 0 0 500 0 0 500", r"'8\.a' is no protein of the species 7"),
        (2, "7.a 7. 0 0 0 0 500 0 0 500", r"'7\.' is no protein of the species 7"),
        (6, "7.a 7.b 0 0 x 0 500 0 0 500", "a score is no whole number"),
        (7, "7.a 7.b 0 0 0 0 0.5 0 0 500", "a score is no whole number"),
        (7, "7.a 7.b 0 0 0 0 99999999999999999999 0 0 500", "a score is no whole number"),
        (7, "7.a\r 7.b 0 0 0 0 500 0 0 500", r"'7\.a\\r' is no protein of the species 7"),
        (8, "7.a 7.b 0 0 0 0 500 0 0 1001", "a score is not 0 to 1000"),
        (8, "7.a 7.b 0 0 -1 0 500 0 0 500", "a score is not 0 to 1000"),
    ],
)
def test_wrong_links(tmp_path: Path, blocks: int, line: int, text: str, message: str) -> None:
    lines = [*LINKS[: line - 1], text, *LINKS[line:]]
    path = write_lines(tmp_path / "links.txt.gz", lines)
    with pytest.raises(DataError, match=rf"links\.txt\.gz, line {line}: {message}") as raised:
        read_links(path, 7)
    assert str(raised.value).startswith(str(path))
    assert str(raised.value).endswith("remove it and download it again, or copy a whole one there.")


def test_terms_of_the_gene_ontology(tmp_path: Path, blocks: int) -> None:
    path = write_lines(tmp_path / "terms.txt.gz", TERMS)
    found = read_terms(path, 7, np.array(["7.a", "7.b", "7.c", "7.d"], object))
    assert found.terms.reset_index().to_numpy().tolist() == [
        ["GO:1", "Molecular Function (Gene Ontology)", "α, β"],
        ["GO:2", "Biological Process (Gene Ontology)", 'a "quoted term'],
        ["GO:3", "Cellular Component (Gene Ontology)", ""],
    ]
    assert found.pairs.tolist() == [[0, 0], [0, 1], [2, 1], [3, 0]]
    assert found.proteins == 4


@pytest.mark.parametrize(
    ("line", "text", "message"),
    [
        (1, TERMS[0].replace("term", "GO"), "the columns are .*, and #string_protein_id, category, term, desc.* are"),
        (3, "7.a\tMolecular Function (Gene Ontology)\tGO:1", "4 columns are expected"),
        (3, TERMS[2] + "\t", "4 columns are expected"),
        (4, TERMS[3].replace("7.", "8."), r"'8\.c' is no protein of the species 7"),
        (7, "7.d\tMolecular Function (Gene Ontology)\t\tα, β", "the term is empty"),
    ],
)
def test_wrong_terms(tmp_path: Path, blocks: int, line: int, text: str, message: str) -> None:
    path = write_lines(tmp_path / "terms.txt.gz", [*TERMS[: line - 1], text, *TERMS[line:]])
    with pytest.raises(DataError, match=rf"terms\.txt\.gz, line {line}: {message}"):
        read_terms(path, 7, np.array(["7.a"], object))


def read_7(path: Path) -> None:
    read_links(path, 7) if "links" in path.name else read_terms(path, 7, np.array(["7.a"], object))


@pytest.mark.parametrize(("name", "lines"), [("links.txt.gz", LINKS), ("terms.txt.gz", TERMS)])
def test_files_that_are_missing_empty_cut_or_altered(tmp_path: Path, name: str, lines: list[str]) -> None:
    path = tmp_path / name
    content = write_lines(path, lines).read_bytes()
    not_utf8 = "\n".join(TERMS).encode("latin-1", "replace").replace(b"quoted", b"\xe9t\xe9")
    wrong: list[tuple[bytes | None, str]] = [
        (None, rf"{name} is missing"),
        (b"", "is empty"),
        (gzip.compress(b""), "is empty"),
        (content[:-20], "is cut: the gzip stream ends too early"),
        (content[:5], "is cut"),
        (b"protein1 protein2", "is not a whole gzip file"),
        (content[:-8] + b"\x00" * 8, r"is not a whole gzip file \(CRC check failed"),
        (content[:12] + b"\xff" * 8 + content[20:], "is altered: it does not decompress|is not a whole gzip file"),
        (gzip.compress(lines[0].encode()), "has no (links|Gene Ontology terms)"),
        (gzip.compress(f"{lines[0]}\n".encode()), "has no (links|Gene Ontology terms)"),
        *([(gzip.compress(not_utf8), "line 2: it is no text in UTF-8")] if lines is TERMS else []),
    ]
    for altered, message in wrong:
        path.unlink(missing_ok=True) if altered is None else path.write_bytes(altered)
        with pytest.raises(DataError, match=message) as raised:
            read_7(path)
        assert str(raised.value).startswith(str(path))
    path.unlink()
    path.mkdir()
    with pytest.raises(DataError, match="can't be read"):
        read_7(path)


def test_no_link_reaches_the_score_and_no_term_is_of_the_gene_ontology(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no link with a combined score of at least 500: lower ppi\.string\.min_score"):
        read_links(write_lines(tmp_path / "links.txt.gz", [*LINKS[:1], *LINKS[3:5]]), 7, 500)
    with pytest.raises(DataError, match="has no Gene Ontology terms"):
        read_terms(write_lines(tmp_path / "terms.txt.gz", [TERMS[0], TERMS[4]]), 7, np.array(["7.c"], object))


@pytest.mark.real_data
@pytest.mark.parametrize(
    ("taxon", "proteins", "links", "with_terms"), [(511145, 3043, 42_658, 2693), (224308, 2450, 24_766, 2007)]
)
def test_real_files(taxon: int, proteins: int, links: int, with_terms: int) -> None:
    """Every physical link has a score of at least 150, so that no threshold gives the published counts."""
    kinds = "physical.links.full", "enrichment.terms"
    files = shared(*(f"ppi/{taxon}.protein.{kind}.v12.0.txt.gz" for kind in kinds))
    found = read_links(files[0], taxon)
    assert (len(found.proteins), len(found.edges), found.read) == (proteins, links, 2 * links)
    assert len(read_links(files[0], taxon, 150).edges) == links > len(read_links(files[0], taxon, 400).edges)
    bits = [bool((found.bits >> bit & 1).any()) for bit in range(8)]
    assert bits == [False, False, False, False, True, True, True, False]
    assert len(np.unique(read_terms(files[1], taxon, found.proteins).pairs[:, 0])) == with_terms
