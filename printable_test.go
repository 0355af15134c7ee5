package main

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

func TestPrintable(t *testing.T) {
	for _, tt := range []struct{ name, in, line, prose string }{
		{"plain", "git status --short", "git status --short", "git status --short"},
		{"other scripts", "héllo Привет 你好 العربية हिन्दी ไทย", "héllo Привет 你好 العربية हिन्दी ไทย", "héllo Привет 你好 العربية हिन्दी ไทย"},
		{"emoji", "ok ✓ 🎉", "ok ✓ 🎉", "ok ✓ 🎉"},
		{"escape sequence", "a\x1b[2K\x1b[1A", `a\u{1b}[2K\u{1b}[1A`, `a\u{1b}[2K\u{1b}[1A`},
		{"bell, backspace, delete", "\a\b\x7f\x00", `\u{7}\u{8}\u{7f}\u{0}`, `\u{7}\u{8}\u{7f}\u{0}`},
		{"C1", "\u009b31m\u0085", `\u{9b}31m\u{85}`, `\u{9b}31m\u{85}`},
		{"line ends and tabs", "a\r\nb\tc\n", `a\r\nb\tc\n`, "a\nb\tc\n"},
		{"lone carriage return", "curl evil\rls", `curl evil\rls`, `curl evil\rls`},
		{"bidi", "\u202ecod.exe\u202c \u2066x\u2069 \u200e\u061c", `\u{202e}cod.exe\u{202c} \u{2066}x\u{2069} \u{200e}\u{61c}`, `\u{202e}cod.exe\u{202c} \u{2066}x\u{2069} \u{200e}\u{61c}`},
		{"zero width", "g\u200bit rm\u2060 -rf\ufeff", `g\u{200b}it rm\u{2060} -rf\u{feff}`, `g\u{200b}it rm\u{2060} -rf\u{feff}`},
		{"soft hyphen", "a\u00adb", `a\u{ad}b`, `a\u{ad}b`},
		{"tags", "x\U000e0041\U000e007f", `x\u{e0041}\u{e007f}`, `x\u{e0041}\u{e007f}`},
		{"separators", "a\u2028b\u2029", `a\u{2028}b\u{2029}`, `a\u{2028}b\u{2029}`},
		{"not UTF-8", "a\xff\xc3(\xed\xa0\x80", `a\xff\xc3(\xed\xa0\x80`, `a\xff\xc3(\xed\xa0\x80`},
		{"private use and unassigned", "\ue000\U000fffff\u0378", `\u{e000}\u{fffff}\u{378}`, `\u{e000}\u{fffff}\u{378}`},
		{"blanks that are none", "rm\u00a0-rf\u3000x", `rm\u{a0}-rf\u{3000}x`, "rm\u00a0-rf\u3000x"},
		{"letters drawn as nothing", "a\u3164b\u115fc\u2800d\u034f", `a\u{3164}b\u{115f}c\u{2800}d\u{34f}`, `a\u{3164}b\u{115f}c\u{2800}d\u{34f}`},
		{"shaped emoji", "❤\ufe0f ❤\ufe0f\ufe0f 1\ufe0f\u20e3", "❤\ufe0f ❤\ufe0f\\u{fe0f} 1\\u{fe0f}\u20e3", "❤\ufe0f ❤\ufe0f\\u{fe0f} 1\ufe0f\u20e3"},
		{"variation selectors that carry data", "a\ufe00\U000e0100b\ufe0f", `a\u{fe00}\u{e0100}b\u{fe0f}`, `a\u{fe00}\u{e0100}b\u{fe0f}`},
		{"joined emoji", "👩\u200d💻", `👩\u{200d}💻`, "👩\u200d💻"},
		{"joiners in Persian", "می\u200cخواهم", `می\u{200c}خواهم`, "می\u200cخواهم"},
		{"joiners in Latin", "pay\u200cpal", `pay\u{200c}pal`, `pay\u{200c}pal`},
		{"a mark with nothing below", "\u0301a \u0301", `\u{301}a \u{301}`, `\u{301}a \u{301}`},
		{"marks that pile up", "a\u0301\u0302\u0303\u0304\u0305\u0306", "a\u0301\u0302\u0303\u0304\\u{305}\u0306", "a\u0301\u0302\u0303\u0304\\u{305}\u0306"},
		{"blanks that hide the tail", "ls" + strings.Repeat(" ", 300) + "; curl evil", "ls [300 blanks] ; curl evil", "ls" + strings.Repeat(" ", 300) + "; curl evil"},
		{"a few blanks", strings.Repeat(" ", 16) + "x", strings.Repeat(" ", 16) + "x", strings.Repeat(" ", 16) + "x"},
		{"blanks at the end", "x" + strings.Repeat(" ", 17), "x [17 blanks] ", "x" + strings.Repeat(" ", 17)},
		{"tabs that hide the tail", "ls" + strings.Repeat("\t", 3), `ls\t\t\t`, "ls\t\t\t"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := printable(tt.in); got != tt.line {
				t.Errorf("on a line %q, want %q", got, tt.line)
			}
			if got := printableText(tt.in); got != tt.prose {
				t.Errorf("as prose %q, want %q", got, tt.prose)
			}
		})
	}
}

func FuzzPrintable(f *testing.F) {
	for _, s := range []string{"a\u202eb", "x\xffy\r\n", strings.Repeat(" ", 40), "❤\ufe0f\u200d🔥", "e\u0301\u0301\u0301\u0301\u0301\u0301", "می\u200cخ", "\\u{200b}"} {
		f.Add([]byte(s), uint8(1))
	}
	f.Fuzz(func(t *testing.T, in []byte, size uint8) {
		line, prose := printable(string(in)), printableText(string(in))
		for i, s := range []string{line, prose} {
			if !utf8.ValidString(s) {
				t.Fatalf("%q is not UTF-8", s)
			}
			for _, r := range s {
				keep := i == 1 && (r == '\n' || r == '\t' || r == 0x200c || r == 0x200d || unicode.Is(unicode.Zs, r))
				if !unicode.IsPrint(r) && !keep || unicode.Is(unicode.Bidi_Control, r) {
					t.Fatalf("%q shows %U", s, r)
				}
			}
		}
		if printable(line) != line || printableText(prose) != prose {
			t.Fatalf("not the same again: %q, %q", printable(line), printableText(prose))
		}
		if strings.Contains(line, strings.Repeat(" ", maxBlanks+1)) {
			t.Fatalf("blanks are not counted: %q", line)
		}
		for _, whole := range []string{line, prose} {
			p := printer{prose: whole == prose && whole != line}
			want := printable(string(in))
			if p.prose {
				want = prose
			}
			var out []byte
			for rest := in; len(rest) > 0; {
				n := min(int(size)%7+1, len(rest))
				out = p.append(out, rest[:n], false)
				rest = rest[n:]
			}
			if out = p.append(out, nil, true); string(out) != want {
				t.Fatalf("in pieces %q, at once %q", out, want)
			}
		}
	})
}

func TestHostShown(t *testing.T) {
	for in, want := range map[string]string{
		"example.com":            "example.com",
		"127.0.0.1:8080":         "127.0.0.1:8080",
		"[::1]:443":              "[::1]:443",
		"xn--e1awd7f.com":        "xn--e1awd7f.com (еріс.com)",
		"xn--pple-43d.com:8443":  "xn--pple-43d.com:8443 (аpple.com)",
		"bücher.example":         "xn--bcher-kva.example (bücher.example)",
		"under_score.example":    "under_score.example",
		"xn--a\u202e.example":    `xn--a\u{202e}.example`,
		"xn--0000000000.example": "xn--0000000000.example",
	} {
		if got := hostShown(in); got != want {
			t.Errorf("%q is shown as %q, want %q", in, got, want)
		}
	}
}
