import re

import msgspec

from holdfast.observe.page import make_page


def test_the_page_stands_alone():
    page = make_page({"text": "</script><b>&"})
    assert "/*" + "DATA*/" not in page
    inside = re.search(r'id="data">(.*?)</script>', page, re.S)[1]
    assert msgspec.json.decode(inside) == {"text": "</script><b>&"}


def test_nothing_is_fetched_from_elsewhere():
    page = make_page()
    assert not re.findall(r'(?:src|href)="(?!data:|#)[^"$]+"', page)
    assert "uPlot" in page
    assert 'id="data"></script>' in page
