"""Malformed and unusual files: each is read as a person would read it, or refused in one sentence with the way out.

The rows are written by hand. `notes` are words that the notes of a run have.
"""

import bz2
import gzip
import io
import lzma
import pickle
import sqlite3
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from regard.data import read_corpus
from regard.data.corpus_notes import corpus_notes
from regard.errors import InputError
from sweeps import sweep

PAIRS = ("source", "target")
LABELS = ("text", "label")
TEXT = ("text",)
SENTENCES = [
    ("Hi.", "嗨。"),
    ("Run!", "跑！"),
    ("Wait!", "等等！"),
    ("I love you.", "我爱你。"),
    ("Where is it?", "在哪里？"),
    ("It is late.", "很晚了。"),
    ("We won.", "我们赢了。"),
    ("He ran.", "他跑了。"),
]


@dataclass(frozen=True)
class Case:
    """A file and what is right: rows, or words of the error; words of the reasons of skipped lines and of notes."""

    name: str
    content: bytes | str
    rows: tuple[object, ...] | None = None
    error: str = ""
    skipped: str = ""
    notes: str = ""
    columns: tuple[str, ...] = PAIRS
    languages: tuple[str, ...] = ("en", "zh")
    keep_linebreaks: bool = False


def table(rows: list[tuple[str, ...]], sign: str = "\t", end: str = "\n") -> str:
    return "".join(sign.join(row) + end for row in rows)


def zipped(name: str) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(name, "text")
    return file.getvalue()


def tarred() -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        archive.addfile(tarfile.TarInfo("a.txt"))
    return file.getvalue()


def database() -> bytes:
    base = sqlite3.connect(":memory:")
    base.execute("create table t (a)")
    return base.serialize()


PLAIN = tuple(SENTENCES)
TWO = (("Hi.", "嗨。"), ("Run!", "跑！"))
REVIEWS = [
    ("hide new secretions", "0"),
    ("contains no wit at all", "0"),
    ("a joy to watch from here", "1"),
    ("the greatest musicians", "1"),
    ("lend some dignity to it", "0"),
    ("saw how bad this was", "0"),
    ("with his usual grace", "1"),
    ("that loves its people", "1"),
]
STANCES = {"0": "against", "1": "favour"}
NUMBERED = [(str(index * 77 + 1276), *row) for index, row in enumerate(SENTENCES)]

CASES = [
    # Headers
    Case("sst2.tsv", "sentence\tlabel\n" + table(REVIEWS), tuple(REVIEWS), skipped="header", columns=LABELS),
    Case("names.tsv", "source\ttarget\n" + table(SENTENCES), PLAIN, skipped="header, first line 1"),
    Case("short names.tsv", "src\ttgt\n" + table(SENTENCES), PLAIN, skipped="header"),
    Case("codes.tsv", "en\tzh\n" + table(SENTENCES), PLAIN, skipped="header"),
    Case("flores.tsv", "eng_Latn\tzho_Hans\n" + table(SENTENCES), PLAIN, skipped="header"),
    Case("languages.tsv", "English\tChinese\n" + table(SENTENCES), PLAIN, skipped="header"),
    Case("own names.tsv", "英文\t中文\n" + table(SENTENCES), PLAIN, skipped="header"),
    Case("swapped.tsv", "zh\ten\n" + table([row[::-1] for row in SENTENCES]), PLAIN, skipped="header"),
    Case("target first.tsv", "target\tsource\n" + table([row[::-1] for row in SENTENCES]), PLAIN, skipped="header"),
    Case("half named.tsv", "tgt\tsentence\n" + table([row[::-1] for row in SENTENCES]), PLAIN, skipped="header"),
    Case("index.tsv", "\tsource\ttarget\n" + table(NUMBERED), PLAIN, skipped="header"),  # pandas writes its index
    Case(
        "label first.tsv",
        "label\ttext\n" + table([r[::-1] for r in REVIEWS]),
        tuple(REVIEWS),
        skipped="header",
        columns=LABELS,
    ),
    Case(
        "many.tsv",
        "id\tsentence\tlabel\n" + table([("7", *r) for r in REVIEWS]),
        tuple(REVIEWS),
        skipped="header",
        columns=LABELS,
    ),
    Case(
        "qqp.tsv",
        "id\tquestion1\tlabel\n" + table([("7", *r) for r in REVIEWS]),
        tuple(REVIEWS),
        skipped="header",
        columns=LABELS,
    ),
    Case("two texts.tsv", "sentence1\tsentence2\tlabel\na\tb\t1\n", error="call `text` and `label`", columns=LABELS),
    Case("only a header.tsv", "source\ttarget\n", error="got none: 1 header"),
    Case("pair of words.tsv", "Source\t来源\nTarget\t目标\n", (("Source", "来源"), ("Target", "目标"))),
    Case("dictionary.tsv", "German\t德语\nEnglish\t英语\n", (("German", "德语"), ("English", "英语"))),
    Case(
        "cognates.tsv",
        "German\tDeutsch\nEnglish\tEnglisch\n",
        (("German", "Deutsch"), ("English", "Englisch")),
        languages=("en", "de"),
    ),
    Case("same word.tsv", "Text\tText\nName\tName\n", (("Text", "Text"), ("Name", "Name")), languages=("en", "de")),
    Case("words.tsv", "no\tna\nhi\the\n", (("no", "na"), ("hi", "he")), languages=()),
    Case(
        "toxic.csv",
        "comment_text,toxic\n" + table(REVIEWS, ","),
        tuple(REVIEWS),
        skipped="header",
        notes="column 2, `toxic`, is read as the label",
        columns=LABELS,
    ),
    Case(
        "twitter.csv",
        "clean_text,category\n" + table([(text, f"-{label}.0") for text, label in REVIEWS], ","),
        tuple((text, f"-{label}.0") for text, label in REVIEWS),
        skipped="header",
        columns=LABELS,
    ),
    Case(
        "own words.csv",
        "words,mood\n" + table(REVIEWS, ","),
        tuple(REVIEWS),
        skipped="header",
        notes="column 1, `words`, is read as the text; column 2, `mood`, is read as the label",
        columns=LABELS,
    ),
    Case(
        "own words swapped.csv",
        "id,mood,words\n" + table([(str(i), n, t) for i, (t, n) in enumerate(REVIEWS)], ","),
        tuple(REVIEWS),
        skipped="header",
        notes="column 2, `mood`, is read as the label; column 3, `words`, is read as the text",
        columns=LABELS,
    ),
    Case(
        "stances.tsv",
        "tweet_id\ttweet\tstance\n" + table([(f"900{i}", t, STANCES[n]) for i, (t, n) in enumerate(REVIEWS)]),
        error="names the columns tweet_id, tweet, stance: call `text` and `label`",
        columns=LABELS,
    ),
    Case(
        "stances.csv",
        "message_id,text,stance\n" + table([(f"900{i}", t, STANCES[n]) for i, (t, n) in enumerate(REVIEWS)], ","),
        error="message_id, text, stance: call `text` and `label`",
        columns=LABELS,
    ),
    Case(
        "years.csv",
        "review,year,aspect\n" + table([(t, f"201{n}", STANCES[n]) for t, n in REVIEWS], ","),
        error="review, year, aspect: call `text` and `label`",
        columns=LABELS,
    ),
    Case(
        "ids last.csv",
        "tweet,tweet_id\n" + table([(t, f"900{i}") for i, (t, _) in enumerate(REVIEWS)], ","),
        error="tweet, tweet_id: call `text` and `label`",
        columns=LABELS,
    ),
    Case(
        "plurals.tsv",
        "many\tplural\n1\tsingular\n2\tplural\n3\tplural\n",
        (("many", "plural"), ("1", "singular"), ("2", "plural"), ("3", "plural")),
        notes="such as 'singular'",
        columns=LABELS,
    ),
    Case(
        "numbers of words.tsv",
        "few\tpaucal\n1\tsingular\n2\tdual\n",
        error="few, paucal: call `text` and `label`",
        columns=LABELS,
    ),
    *(
        Case(
            f"no score {i}.tsv",
            f"Hello\tBonjour\t{word}\n" + table([(f"the {n}", f"le {n}", f"0.{n}") for n in range(4)]),
            (("Hello", "Bonjour"), *((f"the {n}", f"le {n}") for n in range(4))),
            languages=("en", "fr"),
        )
        for i, word in enumerate(["n/a", "NaN", "none", "null", "inf", "-inf", "-", "?", "<NA>", "#N/A"])
    ),
    Case(
        "toxic kinds.csv",
        "id,comment_text,toxic,obscene\n" + table([(f"a{i}b", t, n, n) for i, (t, n) in enumerate(REVIEWS)], ","),
        error="names the columns id, comment_text, toxic, obscene: call `text` and `label`",
        columns=LABELS,
    ),
    Case("snli.csv", "gold_label,sentence1,sentence2\nneutral,a b,c d\n", error="gold_label.*call", columns=LABELS),
    Case(
        "pairs of qqp.csv",
        "id,question1,question2,is_duplicate\n" + table([(str(i), t, t, n) for i, (t, n) in enumerate(REVIEWS)], ","),
        error="id, question1, question2, is_duplicate: call `text` and `label`",
        columns=LABELS,
    ),
    Case(
        "mrpc.tsv",
        "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t70\t71\ta b\tReferring b\n",
        error="#1 String, #2 String: call `text` and `label`",
        columns=LABELS,
    ),
    Case("text alone.tsv", "text\tsentence2\na b\tc d\n", error="call `text` and `label`", columns=LABELS),
    Case(
        "a word label.tsv",
        table([*REVIEWS[:3]]) + "odd\tone\n",
        (*REVIEWS[:3], ("odd", "one")),
        notes="labels",
        columns=LABELS,
    ),
    Case("pandas.csv", "0,1\n" + table(SENTENCES, ","), PLAIN, skipped="header"),
    Case("pandas index.csv", ",0,1\n" + table([(str(i), *s) for i, s in enumerate(TWO)], ","), TWO, skipped="header"),
    Case("sums.tsv", "0\t1\n1\t2\n2\t3\n", error="column 1 of .* holds numbers, such as '0'"),
    Case(
        "scores named.tsv",
        "laser\tGerman\tthe other\n" + table([(f"1.0{n}", *row) for n, *row in NUMBERED]),
        PLAIN,
        skipped="header",
        notes="column 1 holds numbers",
    ),
    # Quotes
    Case("inner quotes.tsv", 'a ""b""\tx\n', (('a ""b""', "x"),), languages=()),
    Case(
        "doubled.tsv",
        '"a ""quoted"" field"\tx\nplain\ty\n',
        (('a "quoted" field', "x"), ("plain", "y")),
        notes="quotes",
    ),
    Case("tab inside.tsv", '"a\tb"\tx\n"c ""d"""\ty\n', (("a\tb", "x"), ('c "d"', "y")), notes="quotes", languages=()),
    Case("line inside.tsv", '"a\nb"\tx\nc\ty\n', (("a b", "x"), ("c", "y")), notes="quotes"),
    Case("all quoted.tsv", '"Hi."\t"嗨。"\n"Run!"\t"跑！"\n', TWO, notes="quotes"),
    Case("speech.tsv", '"Hi."\t「嗨。」\nRun!\t跑！\n', (('"Hi."', "「嗨。」"), ("Run!", "跑！"))),
    Case("begun.tsv", '"Hi," he said.\tx\nHi "you"\ty\n', (('"Hi," he said.', "x"), ('Hi "you"', "y")), languages=()),
    Case("open.tsv", 'Hi\t"你好\nBye\t再见"\n', (("Hi", '"你好'), ("Bye", '再见"'))),
    # CSV
    Case("commas.csv", "source,target\nHi.,嗨。\nRun!,跑！\n", TWO, skipped="header"),
    Case("quotes.csv", 'Hi.,嗨。\n"Yes, ""run""!",跑！\n', (("Hi.", "嗨。"), ('Yes, "run"!', "跑！"))),
    Case("excel.csv", "sep=;\r\nsource;target\r\nHi.;嗨。\r\nRun!;跑！\r\n", TWO, skipped="header"),
    Case("excel commas.csv", '"sep=,"\nHi.,嗨。\nRun!,跑！\n', TWO, skipped="that names the separator, first line 1"),
    Case(
        "commas everywhere.csv",
        "I see, well,我看见\nNo, run,跑！\n",
        error="have 3 fields, and 2 are read: put quotes.*or name.*such as source,target,column 3",
    ),
    Case(
        "commas below names.csv",
        "source,target\nI see, well,我看见\nNo, run,跑！\n",
        error="2 with another number of fields than 2, first line 2; put quotes around a field with a comma",
    ),
    Case("one text.csv", "hello, world\nyes, we can\n", error="have 2 fields, and 1 are read", columns=TEXT),
    Case("labels last.csv", "hello, world,1\nyes, we can,0\n", error="have 3 fields, and 2 are", columns=LABELS),
    Case(
        "quoted commas.csv",
        'Hi.,嗨。,CC-BY\n"Yes, run!",跑！,CC-BY\n',
        (("Hi.", "嗨。"), ("Yes, run!", "跑！")),
    ),
    Case(
        "named commas.csv",
        "source,target,column 3\nHi.,嗨。,CC-BY\nRun!,跑！,CC-BY\n",
        TWO,
        skipped="header",
    ),
    Case("trailing commas.csv", "Hi.,嗨。,\nRun!,跑！,\n", TWO),
    Case("semicolons.csv", "Hi.;嗨。\nRun!;跑！\n", TWO),
    Case("tabs.csv", "Hi.\t嗨。\nRun!\t跑！\n", TWO),
    Case("bare commas.csv", "Yes, run!,跑！\nHi.,嗨。\n", error="2 to 3 fields.*quotes.*or write tabs"),
    Case("broken.csv", 'Hi.,"嗨。\nRun!,跑！\n', error="a quote that is not closed"),
    Case("commas.tsv", "Hi.,嗨。\nRun!,跑！\n", error="each has ',': write a tab instead, or name the file .csv"),
    Case("aligned.txt", "Hi. ||| 嗨。\nRun! ||| 跑！\n", error=r"each has '\|\|\|': write a tab instead"),
    Case(
        "train.en",
        "Hi\nRun\n",
        error="no line has a tab: two files become a table by paste train.en train.zh > train.tsv",
    ),
    # Numbers instead of sentences, and more columns
    Case("export.tsv", table([(n, s, f"9{n}", t) for n, s, t in NUMBERED]), PLAIN, notes="columns 2 and 4 are read"),
    Case("numbered.tsv", table(NUMBERED), PLAIN, notes="column 1 holds numbers"),
    Case(
        "sentences.tsv",
        table([(n, "eng", s) for n, s, _ in NUMBERED]),
        error="holds codes of languages.*sentence pairs",
    ),
    Case(
        "links.tsv", table([(n, n + "1") for n, _, _ in NUMBERED]), error="column 1 of .* holds numbers, such as '1276'"
    ),
    Case("wikimatrix.tsv", table([(f"1.0{n}", *row) for n, *row in NUMBERED]), PLAIN, notes="column 1 holds numbers"),
    Case(
        "scores.tsv",
        table([(f"-{n}e-05", ".5", "+1,5", *row) for n, *row in NUMBERED]),
        PLAIN,
        notes="columns 4 and 5 are read: columns 1 to 3 hold numbers",
    ),
    Case("opus.tsv", table([(f"doc.{n}", *r) for n, *r in NUMBERED]), PLAIN, notes="column 1 holds numbers"),
    Case("manythings.txt", table([(*row, "CC-BY 2.0 #1 (a)") for row in SENTENCES]), PLAIN),
    Case(
        "numerals.tsv",
        "1\tone\n2\ttwo\n3\tthree\n",
        (("1", "one"), ("2", "two"), ("3", "three")),
        languages=("en", "en"),
    ),
    Case(
        "ids of texts.tsv",
        table([(n, s) for n, s, _ in NUMBERED]),
        tuple(s for s, _ in SENTENCES),
        notes="column 2 is read",
        columns=TEXT,
    ),
    # Labels
    Case(
        "labels first.tsv",
        table([r[::-1] for r in REVIEWS]),
        error="column 1 of .* labels.*text<TAB>label",
        columns=LABELS,
    ),
    Case(
        "fast.txt",
        "".join(f"__label__{label} {text}\n" for text, label in REVIEWS),
        tuple(REVIEWS),
        columns=LABELS,
    ),
    Case(
        "several labels.txt",
        "__label__a Hi\n__label__a __label__b Run\n",
        (("Hi", "a"),),
        skipped="no label or several",
        notes="1 of 1 labels",
        columns=LABELS,
    ),
    Case("once.tsv", table([*REVIEWS, ("odd", "7")]), (*REVIEWS, ("odd", "7")), notes="such as '7'", columns=LABELS),
    Case("tags.tsv", "EU\tB-ORG\nrejects\tO\nGerman\tB-MISC\n\ncall\tO\n", error="CoNLL", columns=LABELS),
    Case("ud.conllu", "# sent_id = 1\n1\tHi\thi\tINTJ\t_\t_\t0\troot\t_\t_\n", error="CoNLL", columns=LABELS),
    # JSON
    Case("wmt.jsonl", '{"translation": {"zh": "嗨。", "en": "Hi."}}\n', (("Hi.", "嗨。"),)),
    Case("keys.jsonl", '{"zh": "嗨。", "en": "Hi.", "id": 1}\n', (("Hi.", "嗨。"),)),
    Case("src.jsonl", '{"tgt": "嗨。", "src": "Hi."}\n', (("Hi.", "嗨。"),)),
    Case(
        "glue.jsonl",
        '{"sentence": "good", "label": 1, "idx": 0}\n',
        (("good", "1"),),
        notes="1 of 1 labels",
        columns=LABELS,
    ),
    Case(
        "wmt of others.jsonl",
        '{"translation": {"de": "Hallo", "en": "Hi."}}\n',
        error="1 whose `translation` has de and en, not fr",
        languages=("en", "fr"),
    ),
    Case(
        "wmt of three.jsonl",
        '{"translation": {"de": "Hallo", "en": "Hi.", "zh": "嗨。"}}\n',
        error="whose `translation` has de, en and zh, and not one each",
        languages=(),
    ),
    Case(
        "wmt late.jsonl",
        '{"translation": {"de": "Hallo"}}\n{"translation": {"zh": "嗨。", "en": "Hi."}}\n',
        (("Hi.", "嗨。"),),
        skipped="has de, not en or zh, first line 1",
    ),
    Case(
        "floats.jsonl",
        '{"text": "a", "label": 1.0}\n{"text": "b", "label": 1}\n{"text": "c", "label": -1.0}\n',
        (("a", "1"), ("b", "1"), ("c", "-1")),
        notes="labels",
        columns=LABELS,
    ),
    Case("booleans.jsonl", '{"text": "a", "label": true}\n', error="neither text nor a whole number", columns=LABELS),
    Case("halves.jsonl", '{"text": "a", "label": 0.5}\n', error="neither text nor a whole number", columns=LABELS),
    Case("array.json", '[{"source": "Hi.", "target": "嗨。"}]', (("Hi.", "嗨。"),)),
    Case("data.json", '{\n"data": [\n{"source": "Hi.", "target": "嗨。"}\n]\n}', (("Hi.", "嗨。"),)),
    Case("lines.json", '{"source": "Hi.", "target": "嗨。"}\n', (("Hi.", "嗨。"),)),
    Case("other.jsonl", '{"a": "Hi.", "b": "嗨。"}\n', error="without `source`.*first key is `a`"),
    Case("json.txt", '{"text": "Hi."}\n{"text": "Run!"}\n', error="JSON Lines: name the file json.jsonl", columns=TEXT),
    Case("json.tsv", '{"source": "Hi."}\n{"source": "a"}\n', error="JSON Lines: name the file json.jsonl"),
    Case("array.txt", '[{"text": "Hi."}]', error="JSON: name the file array.json", columns=TEXT),
    Case("packed.json.gz", gzip.compress(b'{"text": "Hi."}\n'), ("Hi.",), columns=TEXT),
    # Markup and other formats of text
    Case("memory.tmx", '<?xml version="1.0"?>\n<tmx version="1.4">\n</tmx>\n', error="TMX: extract its segments"),
    Case("set.sgm", '<srcset setid="x" srclang="en">\n<doc>\n<seg id="1">Hi.</seg>\n', error="SGML or XML of WMT"),
    Case("any.xml", '<?xml version="1.0"?>\n<root>\n', error="XML: extract its texts", columns=TEXT),
    Case("error.tsv", "<!DOCTYPE html>\n<html><body>404</body></html>\n", error=r"a web page \(HTML\)"),
    Case("film.srt", "1\n00:00:01,000 --> 00:00:02,000\nHi.\n", error=r"subtitles \(SubRip\)", columns=TEXT),
    Case("film.vtt", "WEBVTT\n\n00:01.000 --> 00:02.000\nHi.\n", error=r"subtitles \(WebVTT\)", columns=TEXT),
    # Encodings
    Case("bom.tsv", b"\xef\xbb\xbf" + table(SENTENCES).encode(), PLAIN),
    Case("joined.tsv", b"\xef\xbb\xbfHi.\t\xe5\x97\xa8\n\xef\xbb\xbfRun!\tx\n", (("Hi.", "嗨"), ("Run!", "x"))),
    Case("utf16.tsv", table(SENTENCES).encode("utf-16"), error="got UTF-16: `iconv -f UTF-16 -t UTF-8`"),
    Case("utf16le.tsv", table(SENTENCES).encode("utf-16-le"), error="got UTF-16LE: `iconv"),
    Case("utf16be.txt", b"\0H\0i\0.\0\n", error="got UTF-16BE: `iconv", columns=TEXT),
    Case("utf32.tsv", table(SENTENCES).encode("utf-32"), error="got UTF-32: `iconv"),
    Case("gb.tsv", table(SENTENCES).encode("gb18030"), error="perhaps GB18030 .'Hi..*嗨。'.*: `iconv -f ENCODING"),
    Case(
        "big5.tsv",
        "Where?\t圖書館在哪裡？\nLate.\t今天很晚了。\n".encode("big5"),
        error="perhaps.* BIG5 .'Where.*圖書館",
    ),
    Case("sjis.txt", "図書館はどこですか。\n".encode("cp932"), error="perhaps.* SHIFT_JIS .'図書館は", columns=TEXT),
    Case(
        "latin.txt", "Grüße\nSchöne Äpfel\n".encode("latin-1"), error="perhaps CP1252 .'Grüße'.: `iconv", columns=TEXT
    ),
    Case("koi8.txt", "Привет, мир\n".encode("koi8-r"), error="perhaps.* KOI8-R .'Привет, мир'", columns=TEXT),
    Case(
        "polish.txt",
        "Zażółć gęślą jaźń\nŁódź\n".encode("iso8859-2"),
        error="perhaps ISO-8859-2 .'Zażółć gęślą jaźń'",
        columns=TEXT,
    ),
    Case(
        "czech.tsv",
        "Hi.\tPříliš žluťoučký\nRun!\tkůň\n".encode("cp1250"),
        error="perhaps CP1250 .'Hi.*Příliš žluť",
        languages=("en", "cs"),
    ),
    Case(
        "turkish.tsv",
        "Hi.\tİyi akşamlar\nRun!\tYağmur çığ\n".encode("cp1254"),
        error="perhaps CP1254 .'Hi.*İyi akş",
        languages=("en", "tr"),
    ),
    Case("turkish.txt", "İyi akşamlar\nYağmur çığ\n".encode("cp1254"), error=" or CP1254 .'İyi akşamlar", columns=TEXT),
    Case("greek.txt", "Καλημέρα σας\nΠώς είστε;\n".encode("iso8859-7"), error="ISO-8859-7 .'Καλημέρα", columns=TEXT),
    Case(
        "greek.tsv",
        "Hi.\tΚαλημέρα σας\n".encode("iso8859-7"),
        error="perhaps ISO-8859-7 .'Hi.*Καλ",
        languages=("en", "el"),
    ),
    Case("hebrew.tsv", "Hi.\tשלום לכולם\n".encode("cp1255"), error="perhaps CP1255 .'Hi.*שלום", languages=("en", "he")),
    Case("hebrew.txt", "שלום לכולם\n".encode("cp1255"), error="CP1255 .'שלום", columns=TEXT),
    Case("thai.tsv", "Hi.\tสวัสดีครับ\n".encode("tis-620"), error="perhaps TIS-620 .'Hi.*สวัสดี", languages=("en", "th")),
    Case("thai.txt", "สวัสดีครับ\n".encode("tis-620"), error="TIS-620 .'สวัสดี", columns=TEXT),
    Case("arabic.tsv", "Hi.\tمرحبا بكم\n".encode("cp1256"), error="perhaps CP1256 .'Hi.*مرحبا", languages=("en", "ar")),
    Case("gbk.txt", "圖書館在哪裡\n今天\n".encode("gb18030"), error=r"GB18030 \('圖書館在哪裡'\)", columns=TEXT),
    Case(
        "wide.txt",
        "今天是一个好天气，我们出去走一走。\n一二三\n".encode("utf-16-le"),
        error="got UTF-16LE",
        columns=TEXT,
    ),
    Case(
        "wide be.txt",
        "今天是一个好天气，我们出去走一走。\n一二三\n".encode("utf-16-be"),
        error="got UTF-16BE",
        columns=TEXT,
    ),
    Case("wide.tsv", table([(t, t * 40) for _, t in SENTENCES]).encode("utf-16-le"), error="got UTF-16LE"),
    Case("form feed.txt", "Hi, you\n\fRun!\n".encode("utf-16-le"), error="got UTF-16LE", columns=TEXT),
    Case("controls.txt", "Hi, you\x0b\x1e\x85\nRun\0!\n".encode("utf-16-be"), error="got UTF-16BE", columns=TEXT),
    Case(
        "form feed zh.txt",
        ("今天是一个好天气，我们出去走一走。\n" * 20 + "\f\x1e一二三\n").encode("utf-16-le"),
        error="got UTF-16LE",
        columns=TEXT,
    ),
    Case("jis.txt", "図書館はどこ\n".encode("iso2022_jp"), error="got ISO-2022-JP: `iconv", columns=TEXT),
    Case("ks.txt", "안녕하세요\n".encode("iso2022_kr"), error="got ISO-2022-KR: `iconv", columns=TEXT),
    Case("one bad line.tsv", "Hi.\t嗨。\nRun!\t跑！\n".encode() + b"x\t\xff\n", TWO, skipped="not UTF-8, first line 3"),
    Case(
        "mojibake.tsv", "Late\tSpÃ¤t\nHi\tHallo\n", (("Late", "SpÃ¤t"), ("Hi", "Hallo")), notes="UTF-8 read in another"
    ),
    Case("nul.tsv", b"Hi.\t\xe5\x97\xa8\nRu\0n\tx\n", (("Hi.", "嗨"),), skipped="with a NUL inside, first line 2"),
    # Packed, and no text at all
    Case("pairs.gz", gzip.compress(table(SENTENCES).encode()), PLAIN),
    Case("twice.tsv.gz", gzip.compress(gzip.compress(table(SENTENCES).encode())), PLAIN),
    Case("torn.tsv.gz", gzip.compress(table(SENTENCES).encode(), mtime=0)[:-9], error="is it whole"),
    Case("pairs.zip", zipped("pairs.tsv"), error="an archive of zip: unpack it with `unzip`"),
    Case("pairs.docx", zipped("word/document.xml"), error="a document of Word: save it as text"),
    Case("pairs.xlsx", zipped("xl/workbook.xml"), error="a document of Excel: save it as text"),
    Case("pairs.tsv.xz", lzma.compress(b"a\tb\n"), error="packed by xz: unpack it with `xz -d`"),
    Case("pairs.tsv.bz2", bz2.compress(b"a\tb\n"), error="packed by bzip2"),
    Case("pairs.tsv.zst", b"\x28\xb5\x2f\xfd\x24\x04", error="packed by Zstandard"),
    Case("pairs.tar", tarred(), error="an archive of tar"),
    Case("pairs.parquet", b"PAR1\x15\x04PAR1", error="Parquet: save it as text"),
    Case("pairs.pkl", pickle.dumps(["a"]), error="a pickle: save it as text"),
    Case("pairs.db", database(), error="a database of SQLite"),
    Case("pairs.pdf", b"%PDF-1.4\n", error="a PDF: extract its text"),
    Case("pairs.tsv", "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12\n", error="`git lfs pull`"),
    Case("empty.tsv", "", error="got none: it is empty"),
    Case("blank.txt", "\n \n\n", error="got none: 3 empty", columns=TEXT),
    # Lines
    Case("no end.txt", "one line without an end", ("one line without an end",), columns=TEXT),
    Case("windows.tsv", table(SENTENCES, end="\r\n"), PLAIN),
    Case("macintosh.tsv", table(SENTENCES, end="\r"), PLAIN),
    Case("mixed.tsv", "Hi.\t嗨。\r\nRun!\t跑！\n", TWO),
    Case("long.txt", "word " * 4000 + "\nshort\n", ("word " * 4000, "short"), notes="20,000 characters", columns=TEXT),
    Case("code.txt", "def f(x):\n    return x\n\n", ("def f(x):", "    return x"), skipped="empty", columns=TEXT),
    Case(
        "code.py",
        "def f(x):\r\n\tif x:\r\n\t\treturn 1\r\n\r\n",
        ("def f(x):\n", "\tif x:\n", "\t\treturn 1\n", "\n"),
        columns=TEXT,
        keep_linebreaks=True,
    ),
    Case("page.html", "<html>\n</html>\n", ("<html>\n", "</html>\n"), notes="HTML", columns=TEXT, keep_linebreaks=True),
    # What the rows hold
    Case(
        "swapped columns.tsv",
        table([r[::-1] for r in SENTENCES]),
        tuple(r[::-1] for r in SENTENCES),
        notes="look swapped",
    ),
    Case(
        "no chinese.tsv",
        "Hi.\tHallo\nRun!\tLauf\n",
        (("Hi.", "Hallo"), ("Run!", "Lauf")),
        notes="0 % of the rows of target",
    ),
    Case(
        "copies.tsv",
        table([(s, s) for s, _ in SENTENCES]),
        tuple((s, s) for s, _ in SENTENCES),
        notes="100 % of the targets",
    ),
    Case("doubles.tsv", table([*SENTENCES, *SENTENCES]), PLAIN * 2, notes="8 rows are the same as an earlier one"),
    Case("decomposed.txt", "cafe\u0301\n", ("cafe\u0301",), columns=TEXT),  # the tokenizers compose it
    Case("wide digits.txt", "１２３\n", ("１２３",), columns=TEXT),
    Case("right to left.tsv", "Hi.\tשלום\n", (("Hi.", "שלום"),), languages=("en", "he")),
]


def outcome(case: Case, folder: Path) -> tuple[tuple[object, ...], str, str]:
    path = folder / case.name
    path.write_bytes(case.content if isinstance(case.content, bytes) else case.content.encode())
    languages = case.languages if case.columns == PAIRS else ()
    corpus = read_corpus(path, columns=case.columns, languages=languages, keep_linebreaks=case.keep_linebreaks)
    columns = [corpus[name] for name in case.columns]
    rows = tuple(columns[0]) if len(columns) == 1 else tuple(zip(*columns, strict=True))
    return rows, " ".join(corpus.skipped), " | ".join(corpus_notes(corpus, languages))


def test_each_unusual_file_is_read_as_a_person_would_or_refused(tmp_path_factory):
    assert len(CASES) >= 60
    assert len({case.name for case in CASES}) == len(CASES)
    for each in sweep(CASES):
        with each as case:
            folder = tmp_path_factory.mktemp("case")
            if case.error:
                with pytest.raises(InputError, match=case.error) as refused:
                    outcome(case, folder)
                assert str(folder / case.name) in str(refused.value)
                assert "\n" not in str(refused.value)
                continue
            rows, skipped, notes = outcome(case, folder)
            assert rows == case.rows
            assert case.skipped in skipped
            assert bool(case.skipped) or not skipped
            assert case.notes in notes
            assert bool(case.notes) or not notes


def test_the_markers_of_a_chat_template_are_no_markup(tmp_path):
    path = tmp_path / "chat.txt"
    path.write_text("<|im_start|>a<|im_end|>\n" * 5, "utf-8")
    assert read_corpus(path, columns=("text",), keep_linebreaks=False)["text"] == ("<|im_start|>a<|im_end|>",) * 5
