package tools

import (
	"bytes"
	"strings"
	"testing"

	"golang.org/x/net/html"
)

func testURL(t testing.TB, s string) URL {
	t.Helper()
	u, err := ParseURL(s)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// samplePage is about 1 MB of the markup that articles and shops are made of.
func samplePage() []byte {
	var b bytes.Buffer
	b.WriteString("<!doctype html><html><head><title>Sample</title><style>p{margin:0}</style></head><body>")
	for i := 0; b.Len() < 1<<20; i++ {
		b.WriteString(`<div class="card wide" id="c1" data-k="v"><h2 class="t">Heading of a <em>card</em></h2>
<p>Some words of an article with an <a href="/wiki/Entry_` + strings.Repeat("x", i%9) + `" title="Entry">entry</a>, an
&amp; entity, more text that goes on for a while as paragraphs do, and a <a href="https://example.com/q?a=b&amp;c=d">link</a>.</p>
<ul class="list"><li>first</li><li>second <b>bold</b></li></ul><script>var a = "<p>not text</p>";</script>
<table><tr><td>a</td><td>1</td></tr><tr><td>b</td><td>2</td></tr></table><img src="x.png" alt="a picture"></div>
`)
	}
	return b.Bytes()
}

// BenchmarkHTML compares with a loop over the tokenizer that keeps all text.
func BenchmarkHTML(b *testing.B) {
	page := samplePage()
	b.Run("tokenizer", func(b *testing.B) {
		b.SetBytes(int64(len(page)))
		for b.Loop() {
			z := html.NewTokenizer(bytes.NewReader(page))
			var out []byte
			for tt := z.Next(); tt != html.ErrorToken; tt = z.Next() {
				if tt == html.TextToken {
					out = append(out, z.Text()...)
				}
			}
		}
	})
	b.Run("text", func(b *testing.B) {
		base := testURL(b, "https://example.com/")
		b.SetBytes(int64(len(page)))
		for b.Loop() {
			htmlText(page, base, 1<<30)
		}
	})
}
