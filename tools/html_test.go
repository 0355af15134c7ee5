package tools

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

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

// BenchmarkHTML compares with a loop over the tokenizer that keeps all text, in
// pairs: the metric is the median of the rates' ratios.
func BenchmarkHTML(b *testing.B) {
	page, base := samplePage(), testURL(b, "https://example.com/")
	b.SetBytes(2 * int64(len(page)))
	var ratios []float64
	for b.Loop() {
		start := time.Now()
		var out []byte
		z := html.NewTokenizer(bytes.NewReader(page))
		for tt := z.Next(); tt != html.ErrorToken; tt = z.Next() {
			if tt == html.TextToken {
				out = append(out, z.Text()...)
			}
		}
		middle := time.Now()
		if _, text := htmlText(page, base, 1<<30); len(text) == 0 || len(out) == 0 {
			b.Fatal("no text")
		}
		ratios = append(ratios, float64(middle.Sub(start))/float64(time.Since(middle)))
	}
	slices.Sort(ratios)
	b.ReportMetric(ratios[len(ratios)/2], "ratio")
}

func TestHTMLText(t *testing.T) {
	base := testURL(t, "https://example.com/dir/page")
	for _, c := range []struct{ name, in, want string }{
		{"words", "<p>one\n two\t three</p>", "one two three"},
		{"inline elements", "a<b>b</b>c <i>d</i>", "abc d"},
		{"paragraphs", "<p>a<p>b</p><div>c</div><div>d</div>", "a\n\nb\n\nc\nd"},
		{"line breaks", "a<br>b<br/>c", "a\nb\nc"},
		{"headings", "<h1>A</h1><h3>B <em>c</em></h3>text", "# A\n\n### B c\n\ntext"},
		{"empty heading", "<h1></h1>text", "text"},
		{"list", "<ul><li>a<li>b<ul><li>c</ul></ul>d", "- a\n- b\n  - c\n\nd"},
		{"numbered list", `<ol><li>a</li><li>b</li></ol><ol><li>c</ol>`, "1. a\n2. b\n\n1. c"},
		{"table", "<table><tr><th>a<th>b<tr><td>1</td><td>2 3</td></tr></table>", "a | b\n1 | 2 3"},
		{"preformatted", "<pre>a  b\n  c\n</pre>d", "```\na  b\n  c\n```\n\nd"},
		{"rule", "a<hr>b", "a\n\n---\n\nb"},
		{"entities", "&lt;a&gt; &amp;amp; &#x41;&nbsp;b", "<a> &amp; A b"},
		{"link", `see <a href="https://other.test/x?a=1&amp;b=2">this page</a>.`, "see [this page](https://other.test/x?a=1&b=2)."},
		{"relative links", `<a href="/a">1</a> <a href="b">2</a> <a href="../c">3</a> <a href="//h.test/d">4</a> <a href="?q">5</a>`,
			"[1](https://example.com/a) [2](https://example.com/dir/b) [3](https://example.com/c) [4](https://h.test/d) [5](https://example.com/dir/page?q)"},
		{"relative links upwards", `<a href="../../../../x">1</a> <a href="../y/./z">2</a> <a href="..">3</a> <a href=".">4</a> <a href="../#f">5</a> <a href="q:r">6</a>`,
			"[1](https://example.com/x) [2](https://example.com/y/z) [3](https://example.com/) [4](https://example.com/dir/) [5](https://example.com/) 6"},
		{"links to no page", `<a href="#x">1</a> <a href="javascript:alert(1)">2</a> <a href="data:,x">3</a> <a name=x>4</a> <a href="http://u@h.test/">5</a>`, "1 2 3 4 5"},
		{"link in capitals without quotes", `<A CLASS=x HREF=/y>z</A>`, "[z](https://example.com/y)"},
		{"link to encode", `<a href="/a b(c)">z</a>`, "[z](https://example.com/a%20b(c))"},
		{"link without text", `a<a href="/x"><img src=y></a>b`, "ab"},
		{"link not closed", `<a href="/x">a`, "[a](https://example.com/x)"},
		{"base", `<base href="https://other.test/d/"><a href="x">a</a><a href="/y">b</a>`, "[a](https://other.test/d/x)[b](https://other.test/y)"},
		{"image", `a <img alt="a &quot;cat&quot;" src="https://evil.test/p?d=x"> b`, `a [image: a "cat"] b`},
		{"scripts and styles", "a<script>x<b>y</b></script><style>p{}</style><iframe>q</iframe>b", "ab"},
		{"script with a tag in a string", `a<script>"<\/script><!--<script>"</script>b`, "a"},
		{"comment", "a<!-- x <p>y</p> -->b<![CDATA[z]]>c", "abc"},
		{"noscript, template, svg", "a<noscript><p>x</p></noscript><template><div>y</div></template><svg><title>t</title><text>z</text></svg>b", "ab"},
		{"nested svg", "a<svg><svg>x</svg>y</svg>b", "ab"},
		{"empty svg", "a<svg/>b", "ab"},
		{"hidden attribute", "a<div hidden>x<div>y</div>z</div>b", "ab"},
		{"hidden in capitals", "a<DIV HIDDEN=''>x</DIV>b", "ab"},
		{"hidden until found", `a<span hidden="until-found">x</span>b`, "ab"},
		{"the word hidden in another attribute", `<p class="hidden" title="hidden">a</p>`, "a"},
		{"hidden input", `a<input type=hidden value=x hidden>b`, "ab"},
		{"hidden line break", `a<br hidden>b`, "ab"},
		{"hidden list item without end tag", "<ul><li>a<li hidden>x<ul><li>y</ul><li>b</ul>c", "- a\n- b\n\nc"},
		{"hidden last list item", "<ul><li>a<li hidden>x</ul>b", "- a\n\nb"},
		{"hidden paragraph without end tag", "<p hidden>x<b>y</b><p>a<div>b</div>", "a\nb"},
		{"end tag that fits nothing", "a<div hidden>x</span></p>y</div>b", "ab"},
		{"closed dialog", "a<dialog>x</dialog><dialog open>y</dialog>b", "ayb"},
		{"textarea", "<textarea>a <b> c</textarea>", "a <b> c"},
		{"tag and invisible characters", "a\U000E0041\U000E0042b\u200bc\u202ed\u00ade\ufefff\U000E0100g\u2063h\u3164i", "abcdefghi"},
		{"invisible characters as entities", "a&#x200b;b&#xE0041;c&shy;d&zwj;&zwnj;&zwj;e", "abcd\u200de"},
		{"joiners that spell", "می\u200cخواهم 👩\u200d🚀 a\u200c\u200d\u200c\u200db", "می\u200cخواهم 👩\u200d🚀 a\u200cb"},
		{"control characters", "a\x1b[31mb\x07c\x7fd", "a [31mb cd"},
		{"bytes that are not UTF-8", "a\xffb \xc2\u200b\x80", "a\ufffdb \ufffd\ufffd"},
		{"not closed", "<p>a<b", "a"},
		{"stray end tags", "</p></div></ul></a></pre>a", "a"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, got := htmlText([]byte(c.in), base, 1<<20); got != c.want {
				t.Errorf("got  %q\nwant %q", got, c.want)
			}
		})
	}
}

func TestHTMLTitle(t *testing.T) {
	title, text := htmlText([]byte("<title> A &amp; B\n</title><svg><title>no</title></svg><p>c<title>d</title>"), testURL(t, "https://h.test/"), 100)
	if title != "A & B" || text != "cd" {
		t.Errorf("%q, %q", title, text)
	}
}

func TestHidingStyle(t *testing.T) {
	for css, want := range map[string]bool{
		"display:none": true, "DISPLAY : NONE ": true, "color:red;display:none!important": true, "visibility: hidden": true,
		"opacity:0": true, "opacity:.01": true, "opacity: 0.5": false, "font-size:0": true, "font-size:1px": true, "font-size:1em": false,
		"font-size:12px": false, "position:absolute;left:-9999px": true, "text-indent:-1000px": true, "left:-10px": false,
		"height:0;overflow:hidden": true, "width:1px;height:1px;overflow:hidden": true, "height:0": false, "overflow:hidden": false,
		"clip: rect(0, 0, 0, 0)": true, "color:#fff;background:#fff": true, "color:white;background-color:white": true,
		"color:white;background:black": false, "color:transparent": true, "display:block": false, "": false, ";;:": false, "display": false,
	} {
		if hidingStyle(css) != want {
			t.Errorf("%q: %v", css, !want)
		}
	}
}

func TestHTMLTextStopsAtLimit(t *testing.T) {
	_, text := htmlText(samplePage(), testURL(t, "https://h.test/"), 1000)
	if len(text) < 900 || len(text) > 2000 {
		t.Errorf("%d bytes", len(text))
	}
}

// Every page ends as text that is bounded by the page and free of what cannot be
// seen.
func FuzzHTMLText(f *testing.F) {
	for _, s := range []string{"<p>a<ul><li hidden>b<li>c</ul>", "<a href=x>y", "<pre>a<br>b", "<svg><template>x", "<ol start=-1><li>", "<title>a<b>",
		"<div style='display:none'>x</div>", "<h9><h1>x", "<!--", "<p hidden>a<table><tr><td>b", "<a\x00href=x>", "<a href='&#0;'>b</a>", "<td><td>", "<script", "<P =a>"} {
		f.Add([]byte(s))
	}
	base, err := ParseURL("https://h.test/d/")
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, page []byte) {
		title, text := htmlText(page, base, 1<<30)
		if len(title)+len(text) > 32*len(page)+64 {
			t.Fatalf("%d bytes of %d", len(text), len(page))
		}
		for _, r := range text {
			if invisible(r) {
				t.Fatalf("%q holds %U", text, r)
			}
		}
		if len(page) > 1 {
			htmlText(page, base, len(page)/2)
		}
	})
}

// BenchmarkHTMLHostile shows that the time grows with the size only.
func BenchmarkHTMLHostile(b *testing.B) {
	base := testURL(b, "https://example.com/")
	for name, part := range map[string]string{
		"open elements":  "<div>",
		"hidden nesting": "<div hidden>",
		"end tags":       "<b></i>",
		"lists":          "<ul><li>x",
		"attributes":     "<a a b c d e f g h i j k l m n o p>",
		"entities":       "&amp;&lt",
		"links":          `<a href="a/../b">`,
	} {
		for _, size := range []string{"256K", "1M"} {
			b.Run(name+"/"+size, func(b *testing.B) {
				n := map[string]int{"256K": 256 << 10, "1M": 1 << 20}[size]
				page := []byte("<p hidden>" + strings.Repeat(part, n/len(part)))
				if name != "hidden nesting" && name != "end tags" {
					page = page[len("<p hidden>"):]
				}
				b.SetBytes(int64(len(page)))
				for b.Loop() {
					htmlText(page, base, 1<<30)
				}
			})
		}
	}
}
