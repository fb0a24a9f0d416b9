"""Numbers in the calendars, numerals and words of many languages: equal values match, other values do not."""

import pytest

from mtformer.data.filters.numbers import NumberRules, numbers_differ


def differ(languages: str, src: str, tgt: str, *, is_strict: bool) -> bool:
    """Return the result for a pair, which must be the same in both directions."""
    rules = NumberRules.of(*languages.split())
    result = numbers_differ(src, tgt, rules, is_strict=is_strict)
    assert numbers_differ(tgt, src, rules, is_strict=is_strict) == result
    return result


@pytest.mark.parametrize("is_strict", [False, True])
@pytest.mark.parametrize(("languages", "src", "tgt"), [
    # Ethiopian and Coptic years, 7 or 8 and 283 or 284 less.
    ("en am", "The school opened in 2016 .", "ትምህርት ቤቱ በ2008 ተከፈተ።"),
    ("en am", "The law of 1995 is old.", "የ1987 ሕግ አሮጌ ነው።"),
    ("en ti", "between 1991 and 2018", "ካብ 1984 ክሳብ 2010"),
    ("en om", "It was built in 2014.", "Bara 2006 ijaarame."),
    ("gez_Ethi en", "በ2008", "in 2016"),
    ("en ar", "in the year 2016", "في سنة 1732 للشهداء"),
    # Bikram Sambat, Nepal Sambat and the Indian national calendar.
    ("en ne", "The constitution of 2015 has 308 articles.", "२०७२ को संविधानमा ३०८ धारा छन्।"),
    ("en ne", "in 2026", "सन् नभई ने.सं. ११४६ मा"),
    ("en hi", "in 2026", "शक १९४८ में"),
    ("en gu", "in 1947", "વિક્રમ સંવત ૨૦૦૪ માં"),
    # Hijri years, which are shorter.
    ("en ar", "It happened in 2026.", "حدث ذلك في عام ١٤٤٧."),
    ("en ar", "It happened in 2026.", "حدث ذلك في عام 1448."),
    ("en ur", "He died in 1979.", "ان کا انتقال ۱۳۹۹ھ میں ہوا۔"),
    ("fr ps", "en 1978", "په ۱۳۹۸ هـ ق کال"),
    ("en dv", "in 1969", "1389 ގައި"),
    # Persian, Bengali, Hebrew, Buddhist, Burmese, Tibetan years, those of Taiwan and North Korea, Kollam.
    ("en fa", "The election of 2021", "انتخابات ۱۴۰۰"),
    ("en prs", "in 1996", "در سال ۱۳۷۵"),
    ("en bn", "on the day in 1971", "১৩৭৮ বঙ্গাব্দে"),
    ("en he", "in 2026", "בשנת 5786"),
    ("en he", "in the year 2026", "בשנת תשפ״ו"),
    ("en he", "in 1948", 'בשנת תש"ח'),
    ("en he", "in 2026", "בתשפ״ו"),
    ("en ckb", "in 2026", "٢٧٢٦ی کوردی"),
    ("en kab", "in 2026", "deg useggas n 2976"),
    ("ja en", "皇紀2600年", "in 1940"),
    ("en pa", "in 2025", "ਨਾਨਕਸ਼ਾਹੀ ੫੫੭"),
    ("en yi", "in 1938", "אין יאר תרצ״ח"),
    ("en th", "in 2023", "ใน พ.ศ. ๒๕๖๖"),
    ("en lo", "in 2026", "ໃນ ພ.ສ. ໒໕໖໙"),
    ("en km", "in 2026", "ព.ស. ២៥៧០"),
    ("en si", "in 2026", "බුද්ධ වර්ෂ 2570"),
    ("en my", "in 2026", "၁၃၈၈ ခုနှစ်"),
    ("en bo", "in 2026", "བོད་རྒྱལ་ལོ་༢༡༥༣"),
    ("en zh_Hant", "in 2026", "民國115年"),
    ("ko en", "주체115년", "in 2026"),
    ("en ml", "in 2025", "കൊല്ലവർഷം 1201"),
    # Japanese eras.
    ("ja en", "平成18年に建てられた。", "It was built in 2006."),
    ("ja en", "（平成18年度）", "(in fiscal Heisei 18)"),
    ("ja de", "安政五年の大火", "der Großbrand von 1858"),
    ("ja en", "令和元年", "in 2019"),
    # Days and months differ too.
    ("en am", "on 8-12 June 2015", "ከሰኔ 1-5 ቀን 2007 ዓ.ም"),
    ("en am", "on 26 September, 2016", "መስከረም 16 ቀን 2009 ዓ.ም"),
    ("en am", "After November 6 we go.", "ከጥቅምት 26 በኋላ እንሄዳለን።"),
    ("en am", "Born on 14/01/2021", "በ06/05/2013 ተወለደ"),
    ("en fa", "On 28 September 2018 he left.", "او در ۶ مهر ۱۳۹۷ رفت."),
    ("en ne", "on 20 September 2015", "३ असोज २०७२ मा"),
    # Hours from sunrise.
    ("en am", "The shop opens at 7:00.", "ሱቁ በ1:00 ሰዓት ይከፈታል።"),
    ("en sw", "The meeting starts at 8 a.m.", "Mkutano unaanza saa 2 asubuhi."),
    ("sw de", "saa 3 usiku", "um 21:00 Uhr"),
    ("en lg", "at 7:30", "ssaawa 1:30"),
    # Numerals and digits.
    ("en am", "It was written in 2008.", "በ፳፻፰ ተጻፈ።"),
    ("en am", "It was written in 1987.", "በ፲፱፻፹፯ ተጻፈ።"),
    ("en ti", "page 123", "ገጽ ፻፳፫"),
    ("en ta", "the year 2015", "௨௲௧௰௫ ஆண்டு"),
    ("en ml", "page 234", "താൾ ൨൱൩൰൪"),
    ("ja en", "三十七歳です。", "I am 37 years old."),
    ("zh en", "二〇二六年", "in 2026"),
    ("zh de", "一百二十三人", "123 Personen"),
    ("zh-Hant en", "廿三頁", "page 23"),
    ("ja en", "1万5600円", "15,600 yen"),
    ("zh en", "已有550多万人", "5.5 million people"),
    ("ko en", "37만 5,000달러", "375,000 dollars"),
    ("ja ko", "3億5600万円", "3억 5600만 엔"),
    ("en bn", "37 lakh people", "৩৭ লাখ মানুষ"),
    ("en ne", "250,000 people", "२ लाख ५० हजार मानिस"),
    ("en mr", "3.7 million people", "३७ लाख लोक"),
    ("en hi", "235 million rupees", "२३ करोड़ ५० लाख रुपये"),
    ("ja en", "5百万人が訪れた。", "5 million people came."),
    ("zh en", "37百万", "37,000,000"),
    ("en hi", "37 houses", "३७ घर"),
    ("en bn", "37 houses", "৩৭টি বাড়ি"),
    ("en km", "37 houses", "ផ្ទះ ៣៧"),
    ("en my", "37 houses", "အိမ် ၃၇ လုံး"),
    ("en bo", "37 houses", "ཁང་པ་༣༧"),
    ("en nqo", "37 houses", "ߓߏ߲߫ ߃߇"),
    ("en ff", "37 houses", "𞤳𞤵𞥄𞤯𞤭 𞥓𞥗"),
    ("en sat", "37 houses", "ᱳᱲᱟᱠ ᱓᱗"),
    ("en ckb", "37 houses", "٣٧ خانوو"),
    ("ja en", "③を選ぶ", "Choose 3."),
    ("ja en", "㊲頁", "page 37"),
    ("ja en", "３．５倍", "3.5 times"),
    ("ja en", "㍻18年", "in 2006"),
    ("en de", "page Ⅷ", "Seite 8"),
    ("en de", "2½ kg of 37", "2,5 kg von 37"),
    ("en de", "½ kg", "0,5 kg"),
    ("en de", "100 m²", "100 Quadratmeter"),
    ("en de", "37 tons¹", "37 Tonnen"),
    # Words.
    ("ja en", "３７歳です。", "I am thirty-seven years old."),
    ("en de", "37 people", "siebenunddreißig Personen"),
    ("en fr", "the 37th page", "la trente-septième page"),
    ("en ru", "with 37 books", "с тридцатью семью книгами"),
    ("en pl", "without 37 books", "bez trzydziestu siedmiu książek"),
    ("en ar", "37 years", "سبعة وثلاثين عاما"),
    ("en hi", "37 years", "सैंतीस साल"),
    ("en th", "37 years", "สามสิบเจ็ดปี"),
    ("en vi", "37 years", "ba mươi bảy năm"),
    ("en sw", "37 years", "miaka thelathini na saba"),
    ("en am", "28 people", "ሃያ ስምንት ሰዎች"),
    ("en ti", "21 people", "ዕስራን ሓደን ሰባት"),
    ("en tr", "37 years", "otuz yedi yıl"),
    ("en ko", "37 years old", "서른일곱 살"),
    ("de en", "im Jahr 1984", "in nineteen eighty-four"),
])  # fmt: skip
def test_the_same_number_in_other_languages(languages: str, src: str, tgt: str, is_strict: bool) -> None:
    assert not differ(languages, src, tgt, is_strict=is_strict)


@pytest.mark.parametrize("is_strict", [False, True])
@pytest.mark.parametrize(("languages", "src", "tgt"), [
    # The year of a calendar is not accepted in languages that do not use it.
    ("en de", "The school opened in 2016.", "Die Schule wurde 2008 eröffnet."),
    ("en fr", "in 2026", "en 1447"),
    ("en es", "in 2026", "en 5786"),
    ("en pt", "in 2026", "em 2569"),
    ("ru en", "в 2026 году", "in 1404"),
    ("en am", "in 2016", "በ1395"),
    ("en th", "in 2016", "ในปี 2008"),
    # Another year of the same calendar.
    ("en am", "The school opened in 2016.", "ትምህርት ቤቱ በ2005 ተከፈተ።"),
    ("en am", "in 2016", "በ፳፻፭"),
    ("en ne", "in 2015", "२०७५ मा"),
    ("en ar", "in 2026", "في عام ١٤٤٥"),
    ("en bn", "in 1971", "১৩৮৮ বঙ্গাব্দে"),
    ("en he", "in 2026", "בשנת 5781"),
    ("en he", "in 2026", "בשנת תשמ״ו"),
    ("en fa", "in 2021", "در سال ۱۴۰۹"),
    ("en zh", "in 2026", "民國125年"),
    ("ja en", "平成18年に建てられた。", "It was built in 2016."),
    # Other days, hours and numbers.
    ("en am", "7 dogs and 2 cats", "1 ውሻ እና 2 ድመቶች"),
    ("en sw", "8 dogs", "mbwa 2"),
    ("en de", "The shop opens at 7:00.", "Der Laden öffnet um 1:00."),
    ("en hi", "37 houses", "३८ घर"),
    ("en km", "37 houses", "ផ្ទះ ៣៨"),
    ("en nqo", "37 houses", "ߓߏ߲߫ ߃߈"),
    ("en ru", "37 books", "тридцать восемь книг"),
    ("en fr", "37 books", "trente-huit livres"),
    ("en am", "28 people", "ሃያ ዘጠኝ ሰዎች"),
])  # fmt: skip
def test_another_number_in_other_languages(languages: str, src: str, tgt: str, is_strict: bool) -> None:
    assert differ(languages, src, tgt, is_strict=is_strict)


LOST = [
    ("ja en", "彼は３７歳です。", "He is three years old."),
    ("ja en", "彼は37 歳です。", "He is three years old."),
    ("ja en", "2026年まで続く。", "It lasts for twenty years."),
    ("ja en", "37年間働いた。", "I worked for three years."),
    ("ja de", "彼は37歳です。", "Er ist drei Jahre alt."),
    ("ja en", "37歳で5億円を得た。", "At the age of three, he got 500 million yen."),
    ("zh en", "他今年37岁。", "He is three years old."),
    ("zh en", "他工作了37年。", "He worked for three years."),
    ("ja en", "勤続37年の社員", "an employee with three years of service"),
    ("zh-Hant fr", "他今年３７歲。", "Il a trois ans."),
    ("ko en", "그는 37살이다.", "He is three years old."),
    ("en ja", "He is 37 years old.", "彼は三歳です。"),
    ("en zh", "He is 37 years old.", "他今年二十七岁。"),
    ("en ko", "He is 37 years old.", "그는 세 살이다."),
    ("th en", "เขาอายุ ๓๗ ปี", "He is three years old."),
    ("ar en", "عمره ٣٧ عاما", "He is three years old."),
    ("my en", "သူ ၃၇ နှစ်ရှိပြီ။", "He is three years old."),
    ("hi de", "वह ३७ साल का है।", "Er ist drei Jahre alt."),
    ("ja en", "震度7.5の地震", "an earthquake of 3.5"),
    ("en zh", "5.6 points and 2.6 rebounds", "得5.6分，2.2个篮板"),
    ("en de", "5.6 points and 2.6 rebounds", "5,6 Punkte und 2,2 Rebounds"),
    ("ja en", "三十人が来た。", "37 people came."),
    ("ja en", "平成18年8月18日に始まった。", "It began in August 2006."),
    ("zh en", "一百二十三人", "143 people"),
    ("ja de", "安政五年の大火", "der Großbrand von 1885"),
]


@pytest.mark.parametrize(("languages", "src", "tgt"), LOST)
def test_a_lost_number_differs_if_strict(languages: str, src: str, tgt: str) -> None:
    assert differ(languages, src, tgt, is_strict=True)


@pytest.mark.parametrize(("languages", "src", "tgt"), [
    ("ja en", "第４回近畿の駅百選", "the Fourth Selection of 100 stations"),
    ("ja en", "20年前", "twenty years ago"),
    ("ja en", "同年4月17日", "on April 17, 823"),
    ("ja en", "18年3月", "in March 2006"),
    ("ja en", "康熙37年", "in 1698"),
    ("ja en", "応徳3年11月（1087年1月5日）", "on January 5, 1087"),
    ("ja en", "1893年（明治27年）、改称した。", "It was renamed in 1893."),
    ("ja en", "元禄4年8月18日 (旧暦)（1691年9月10日）", "September 10, 1691"),
    ("ja en", "同22年（1553年）和解した。", "In 1553, they were reconciled."),
    ("ja en", "昭和30年代", "in the late 1950s"),
    ("zh en", "上世纪八十年代", "in the 1980s"),
    ("ja en", "寛永元年（1624年）10月28日", "October 28, 1624 (Kanei 1)"),
    ("ko en", "5천만 명", "fifty million people"),
    ("en de", "at 2.30 p.m.", "um 14.30 Uhr"),
    ("en de", "1.05 million and 2.5 million", "1.050.000 und 2,5 Millionen"),
    ("zh en", "下降了一点五", "It fell by 1.5."),
    ("ja en", "2,000人が200日働いた。", "Two thousand people worked two hundred days."),
])  # fmt: skip
def test_numbers_that_are_spelled_out_or_counted_by_era_are_no_difference(languages: str, src: str, tgt: str) -> None:
    assert not differ(languages, src, tgt, is_strict=True)
    assert not differ(languages, src, tgt, is_strict=False)
