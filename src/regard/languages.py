"""Languages: the codes by which people name them, and what depends on a language.

One language has many codes: ISO 639-1 (`zh`), ISO 639-2 and 639-3 (`zho`, `chi`, Tatoeba's `cmn`), BCP 47 with script
or region (`zh-Hans`, `zh-TW`), FLORES-200 and NLLB (`zho_Hans`), mBART (`zh_CN`), M2M-100 (`__zh__`). All are read as
the same value, and anything else is refused: under an unknown code, text would be tokenized and scored as English is.
"""

import difflib
import re
from dataclasses import dataclass
from typing import Literal

from regard.errors import InputError

__all__ = ["Language", "find_language"]


@dataclass(frozen=True)
class Language:
    """A language, and what depends on it.

    Args:
        code: ISO 639-1 where the language has such a code, ISO 639-3 otherwise; "und" for any other language.
        name: In English.
        script: Which Chinese characters the code names: "hans" (simplified), "hant" (traditional), None for either.
        bleu_tokenizer: sacreBLEU's tokenizer: `zh`, `char` for other languages whose words no spaces part, else `13a`.
            Japanese and Korean are counted in characters, which needs no dictionary (`ja-mecab` and `ko-mecab` do).
    """

    code: str
    name: str
    script: Literal["hans", "hant"] | None = None
    bleu_tokenizer: Literal["zh", "char", "13a"] = "13a"

    @property
    def is_chinese(self) -> bool:
        """Whether it is written in Chinese characters, simplified or traditional."""
        return self.bleu_tokenizer == "zh"

    @property
    def model_type(self) -> Literal["char", "bpe"]:
        """The tokenizer that is trained for it by default: characters where words are not parted by spaces."""
        return "bpe" if self.bleu_tokenizer == "13a" else "char"

    def __str__(self) -> str:
        variant = {"hans": " (simplified)", "hant": " (traditional)", None: ""}[self.script]
        return f"{self.name}{variant}"


def find_language(code: str) -> Language:
    """Return the language of a code of ISO 639, BCP 47, FLORES-200, NLLB, mBART, M2M-100 or Tatoeba.

    Capitals, and "_" in place of "-", make no difference. Of script and region only those of Chinese matter, and that
    Chinese, Japanese and others in Latin letters have spaces. "und" is any language that has no code here.

    Raises:
        InputError: It is no such code; the nearest one is named.

    >>> find_language("zho_Hans")
    Language(code='zh', name='Chinese', script='hans', bleu_tokenizer='zh')
    >>> [find_language(code).code for code in ("cmn", "zh-TW", "deu_Latn", "de_DE", "ger", "yue", "iw")]
    ['zh', 'zh', 'de', 'de', 'de', 'yue', 'he']
    """
    parts = re.split("[-_]", code.strip().strip("_").partition(".")[0].lower())
    primary, rest = _CODES.get(parts[0]), parts[1:]
    if primary is not None and rest and _CODES.get(rest[0]) in _SINITIC | {"zh"} and primary == "zh":
        primary, rest = _CODES[rest[0]], rest[1:]  # an extended language: zh-yue
    script = rest.pop(0) if rest and len(rest[0]) == 4 and rest[0].isalpha() else None
    region = rest.pop(0) if rest and re.fullmatch("[a-z]{2}|[0-9]{3}", rest[0]) else None
    variants_fit = all(re.fullmatch("[a-z0-9]{5,8}|[0-9][a-z0-9]{3}", part) for part in rest)
    known = script in (None, *_SCRIPTS) and (region is None or region.isdigit() or region in _REGIONS)
    if primary is None or not known or not variants_fit:
        raise InputError(
            f'a language must be named by a code, such as "en", "zh" or "deu_Latn", got {code!r}: {_way(code)}'
        )
    return _language(primary, script, region)


def language_of_name(name: str) -> str | None:
    """Return the code of a language by its name, in English or in that language; None if it is none of these.

    >>> language_of_name("Chinese"), language_of_name("中文"), language_of_name("Hi.")
    ('zh', 'zh', None)
    """
    folded = name.strip().casefold()
    return _OWN_NAMES.get(folded) or next((code for code, known in _NAMES.items() if known.casefold() == folded), None)


def _language(code: str, script: str | None, region: str | None) -> Language:
    name, in_letters = _NAMES[code], script in ("latn", "cyrl", "arab", "hebr", "deva")
    if code in _SINITIC and not in_letters:
        variant: Literal["hans", "hant"] | None = "hans" if script == "hans" or region in ("cn", "sg", "my") else None
        variant = "hant" if script == "hant" or (script is None and region in ("tw", "hk", "mo")) else variant
        return Language(code, name, variant, "zh")
    return Language(code, name, None, "char" if code in _WITHOUT_SPACES and not in_letters else "13a")


def _way(code: str) -> str:
    """What to write instead."""
    text = code.strip().lower().partition(" (")[0]
    named = {name.lower(): key for key, name in _NAMES.items()}
    if near := difflib.get_close_matches(text, named, 1, cutoff=0.75):
        nearest = named[near[0]]
    else:
        parts = re.split("[-_. ]", text)
        keys = [
            _COUNTRIES.get(parts[0], ""),
            parts[0],
            *difflib.get_close_matches(parts[0], list(_CODES), 1, cutoff=0.6),
        ]
        nearest = next((_CODES[key] for key in keys if key in _CODES), "")
    hint = f'did you mean "{nearest}" ({_NAMES[nearest]})? ' if nearest else ""
    return f'{hint}"und" stands for a language that has no code here'


# Codes of each language, the one that is used first, and its English name.
_LANGUAGES = """
aa aar=Afar; ab abk=Abkhazian; abq=Abaza; ace=Acehnese; acm=Mesopotamian Arabic; acq=Ta'izzi-Adeni Arabic; ady=Adyghe;
ae ave=Avestan; aeb=Tunisian Arabic; af afr=Afrikaans; ain=Ainu; ajp=South Levantine Arabic; ak aka=Akan;
alt=Southern Altai; am amh=Amharic; an arg=Aragonese; ang=Old English; apc=Levantine Arabic; ar ara arb=Arabic;
arc=Aramaic; ars=Najdi Arabic; ary=Moroccan Arabic; arz=Egyptian Arabic; as asm=Assamese; ast=Asturian; av ava=Avaric;
awa=Awadhi; ay aym ayr=Aymara; az aze azj=Azerbaijani; azb=South Azerbaijani; ba bak=Bashkir; ban=Balinese;
bar=Bavarian; be bel=Belarusian; bem=Bemba; ber=Berber; bg bul=Bulgarian; bho=Bhojpuri; bi bis=Bislama; bik=Bikol;
bjn=Banjar; bm bam=Bambara; bn ben=Bengali; bo bod tib=Tibetan; br bre=Breton; brx=Bodo; bs bos=Bosnian; bug=Buginese;
ca cat=Catalan; cdo=Min Dong Chinese; ce che=Chechen; ceb=Cebuano; ch cha=Chamorro; cho=Choctaw; chr=Cherokee;
cjk=Chokwe; cjy=Jin Chinese; ckb=Central Kurdish; ckt=Chukchi; co cos=Corsican; cop=Coptic; cr cre=Cree;
crh=Crimean Tatar; crs=Seychellois Creole; cs ces cze=Czech; csb=Kashubian; cu chu=Church Slavic; cv chv=Chuvash;
cy cym wel=Welsh; da dan=Danish; de deu ger=German; dgo=Dogri; dik=Southwestern Dinka; doi=Dogri; dsb=Lower Sorbian;
dv div=Divehi; dyu=Dyula; dz dzo=Dzongkha; ee ewe=Ewe; el ell gre=Greek; en eng=English; enm=Middle English;
eo epo=Esperanto; es spa=Spanish; et est ekk=Estonian; eu baq eus=Basque; ext=Extremaduran; fa fas per pes=Persian;
ff ful fuv=Fula; fi fin=Finnish; fj fij=Fijian; fo fao=Faroese; fon=Fon; fr fra fre=French; frr=North Frisian;
fur=Friulian; fy fry=Western Frisian; ga gle=Irish; gag=Gagauz; gan=Gan Chinese; gd gla=Scottish Gaelic;
gl glg=Galician; gn grn=Guarani; gom=Goan Konkani; gos=Gronings; got=Gothic; grc=Ancient Greek; gsw=Swiss German;
gu guj=Gujarati; gv glv=Manx; ha hau=Hausa; hak=Hakka Chinese; haw=Hawaiian; hbo=Ancient Hebrew; he heb iw=Hebrew;
hi hin=Hindi; hil=Hiligaynon; hmn=Hmong; hne=Chhattisgarhi; ho hmo=Hiri Motu; hr hrv=Croatian; hsb=Upper Sorbian;
hsn=Xiang Chinese; ht hat=Haitian Creole; hu hun=Hungarian; hy arm hye=Armenian; hz her=Herero; ia ina=Interlingua;
id ind in=Indonesian; ie ile=Interlingue; ig ibo=Igbo; ii iii=Sichuan Yi; ik ipk=Inupiaq; ilo=Iloko; inh=Ingush;
io ido=Ido; is ice isl=Icelandic; it ita=Italian; iu iku=Inuktitut; ja jpn=Japanese; jam=Jamaican Creole; jbo=Lojban;
jv jav jw=Javanese; ka geo kat=Georgian; kab=Kabyle; kac=Kachin; kam=Kamba; kbd=Kabardian; kbp=Kabiyè;
kea=Kabuverdianu; kg kon=Kongo; ki kik=Kikuyu; kj kua=Kuanyama; kk kaz=Kazakh; kl kal=Kalaallisut; km khm=Khmer;
kmb=Kimbundu; kn kan=Kannada; ko kor=Korean; kok=Konkani; kr kau knc=Kanuri; ks kas=Kashmiri; ksh=Colognian;
ku kmr kur=Kurdish; kum=Kumyk; kv kom kpv=Komi; kw cor=Cornish; ky kir=Kyrgyz; la lat=Latin; lad=Ladino;
lb ltz=Luxembourgish; lez=Lezgian; lfn=Lingua Franca Nova; lg lug=Ganda; li lim=Limburgish; lij=Ligurian; lmo=Lombard;
ln lin=Lingala; lo lao=Lao; lt lit=Lithuanian; ltg=Latgalian; lu lub=Luba-Katanga; lua=Luba-Lulua; luo=Luo; lus=Mizo;
lv lav lvs=Latvian; lzh=Literary Chinese; mad=Madurese; mag=Magahi; mai=Maithili; mdf=Moksha; mfe=Morisyen;
mg mlg plt=Malagasy; mh mah=Marshallese; mhr=Meadow Mari; mi mao mri=Māori; min=Minangkabau; mk mac mkd=Macedonian;
ml mal=Malayalam; mn mon khk=Mongolian; mni=Manipuri; mos=Mossi; mr mar=Marathi; ms may msa zsm=Malay; mt mlt=Maltese;
mwl=Mirandese; my bur mya=Burmese; myv=Erzya; na nau=Nauru; nah=Nahuatl; nan=Min Nan Chinese; nap=Neapolitan;
nb nob=Norwegian Bokmål; nci=Classical Nahuatl; nd nde=North Ndebele; nds=Low German; ne nep npi=Nepali; new=Newari;
ng ndo=Ndonga; nl dut nld=Dutch; nn nno=Norwegian Nynorsk; no nor=Norwegian; nog=Nogai; non=Old Norse;
nr nbl=South Ndebele; nso ns=Northern Sotho; nus=Nuer; nv nav=Navajo; ny nya=Nyanja; oc oci=Occitan; oj oji=Ojibwa;
om gaz orm=Oromo; or ori ory=Odia; os oss=Ossetic; pa pan=Punjabi; pag=Pangasinan; pam=Pampanga; pap=Papiamento;
pau=Palauan; pcm=Nigerian Pidgin; pi pli=Pali; pl pol=Polish; pms=Piedmontese; prs=Dari; ps pus pbt=Pashto;
pt por=Portuguese; qu que quy=Quechua; rif=Tarifit; rm roh=Romansh; rn run=Rundi; ro ron rum mol mo=Romanian;
ru rus=Russian; rue=Rusyn; rw kin=Kinyarwanda; sa san=Sanskrit; sah=Yakut; sat=Santali; sc srd=Sardinian;
scn=Sicilian; sco=Scots; sd snd=Sindhi; se sme=Northern Sami; ses=Koyraboro Senni; sg sag=Sango; sgs=Samogitian;
sh hbs=Serbo-Croatian; shi=Tashelhit; shn=Shan; si sin=Sinhala; sk slk slo=Slovak; sl slv=Slovenian; sm smo=Samoan;
sma=Southern Sami; smn=Inari Sami; sms=Skolt Sami; sn sna=Shona; so som=Somali; sq alb als sqi=Albanian;
sr srp=Serbian; ss ssw=Swati; st sot=Southern Sotho; stq=Saterland Frisian; su sun=Sundanese; sux=Sumerian;
sv swe=Swedish; sw swa swh=Swahili; swg=Swabian; syr=Syriac; szl=Silesian; ta tam=Tamil; taq=Tamasheq; te tel=Telugu;
tet=Tetum; tg tgk=Tajik; th tha=Thai; ti tir=Tigrinya; tk tuk=Turkmen; tl tgl fil=Tagalog; tlh=Klingon; tn tsn=Tswana;
to ton=Tongan; tok=Toki Pona; tpi=Tok Pisin; tr tur=Turkish; ts tso=Tsonga; tt tat=Tatar; tum=Tumbuka; tw twi=Twi;
ty tah=Tahitian; tyv=Tuvan; tzm=Central Atlas Tamazight; udm=Udmurt; ug uig=Uyghur; uk ukr=Ukrainian; umb=Umbundu;
ur urd=Urdu; uz uzb uzn=Uzbek; ve ven=Venda; vec=Venetian; vep=Veps; vi vie=Vietnamese; vo vol=Volapük; vro=Võro;
wa wln=Walloon; war=Waray; wo wol=Wolof; wuu=Wu Chinese; xh xho=Xhosa; yi ydd yid ji=Yiddish; yo yor=Yoruba;
yua=Yucatec Maya; yue=Cantonese; za zha=Zhuang; zgh=Standard Moroccan Tamazight; zh chi cmn zho=Chinese; zu zul=Zulu
"""

_NAMES: dict[str, str] = {"und": "undetermined"}  # by the code that is used
_CODES: dict[str, str] = {"und": "und"}  # all codes, and the one that is used for each
for _entry in _LANGUAGES.replace("\n", " ").split(";"):
    _codes, _, _name = _entry.strip().partition("=")
    _NAMES[_codes.split()[0]] = _name
    _CODES |= dict.fromkeys(_codes.split(), _codes.split()[0])

_SINITIC = {"zh", "yue", "lzh", "wuu", "nan", "hak", "gan", "hsn", "cjy", "cdo"}
_WITHOUT_SPACES = {"ja", "ko", "th", "lo", "km", "my", "shn", "bo", "dz"}  # Korean has some, between phrases
_SCRIPTS = set(
    "arab armn beng cyrl deva ethi geor grek gujr guru hang hani hans hant hebr hira jpan kana khmr knda kore laoo "
    "latn mlym mtei mymr olck orya sinh taml telu tfng thaa thai tibt zyyy".split()
)
# ISO 3166, and XX of mBART: "en-zh" is a pair of languages and no code, as ZH is no country.
_REGIONS = set(
    "ad ae af ag ai al am ao aq ar as at au aw ax az ba bb bd be bf bg bh bi bj bl bm bn bo bq br bs bt bv bw by bz ca "
    "cc cd cf cg ch ci ck cl cm cn co cr cu cv cw cx cy cz de dj dk dm do dz ec ee eg eh er es et fi fj fk fm fo fr ga "
    "gb gd ge gf gg gh gi gl gm gn gp gq gr gs gt gu gw gy hk hm hn hr ht hu id ie il im in io iq ir is it je jm jo jp "
    "ke kg kh ki km kn kp kr kw ky kz la lb lc li lk lr ls lt lu lv ly ma mc md me mf mg mh mk ml mm mn mo mp mq mr ms "
    "mt mu mv mw mx my mz na nc ne nf ng ni nl no np nr nu nz om pa pe pf pg ph pk pl pm pn pr ps pt pw py qa re ro rs "
    "ru rw sa sb sc sd se sg sh si sj sk sl sm sn so sr ss st sv sx sy sz tc td tf tg th tj tk tl tm tn to tr tt tv tw "
    "tz ua ug uk um us uy uz va vc ve vg vi vn vu wf ws xk xx ye yt za zm zw".split()
)
_COUNTRIES = {
    "cn": "zh",
    "jp": "ja",
    "cz": "cs",
    "dk": "da",
    "gr": "el",
    "ua": "uk",
    "vn": "vi",
    "us": "en",
    "gb": "en",
}
# Names that heads of columns have in the languages themselves.
_OWN_NAMES = {"中文": "zh", "汉语": "zh", "漢語": "zh", "英语": "en", "英文": "en", "日本語": "ja", "한국어": "ko"} | {
    "deutsch": "de",
    "français": "fr",
    "español": "es",
    "italiano": "it",
    "português": "pt",
    "nederlands": "nl",
    "русский": "ru",
}
