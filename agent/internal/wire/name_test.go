package wire

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestNamesTravelAsPythonWritesThem(t *testing.T) {
	for name, text := range map[Name]string{
		"plain":          `"plain"`,
		"a\"b\\c\n\x01":  `"a\"b\\c\u000a\u0001"`,
		"é💀":             `"é💀"`,
		"\xff":           `"\udcff"`,
		"a\x80b":         `"a\udc80b"`,
		"\xed\xb2\x80":   `"\udced\udcb2\udc80"`, // a surrogate in UTF-8 is not UTF-8
		"\xf0\x9f":       `"\udcf0\udc9f"`,
		"":               `""`,
		"\ufffd":         "\"\ufffd\"",
		"x\xc3\xa9\xc3":  `"xé\udcc3"`,
		"\xf0\x9f\x92é":  `"\udcf0\udc9f\udc92é"`,
		"del\x7f and /x": `"del\u007f and /x"`,
	} {
		b, err := json.Marshal(name)
		if err != nil || string(b) != text {
			t.Errorf("%q is written %s (%v), want %s", name, b, err, text)
		}
		var back Name
		if err := json.Unmarshal([]byte(text), &back); err != nil || back != name {
			t.Errorf("%s is read %q (%v), want %q", text, back, err, name)
		}
	}
}

func TestNamesAreReadInAnyEscaping(t *testing.T) {
	for text, name := range map[string]Name{
		`"\u00e9\/\b\f\n\r\t"`: "é/\b\f\n\r\t",
		`"\ud83d\udc80"`:       "💀", // a pair, although its second half alone would be a byte
		`"\uDC80"`:             "\x80",
		`null`:                 "",
	} {
		var n Name
		if err := json.Unmarshal([]byte(text), &n); err != nil || n != name {
			t.Errorf("%s is read %q (%v), want %q", text, n, err, name)
		}
	}
	for _, text := range []string{`"\ud800"`, `"\udc00"`, `"\udc7f"`, `"\udd00"`, `"\ud83d"`, `1`, `["a"]`, "\"\xff\""} {
		var n Name
		if err := json.Unmarshal([]byte(text), &n); err == nil {
			t.Errorf("%q is read as %q, want a refusal", text, n)
		}
	}
}

func TestEnvironmentKeepsOddNames(t *testing.T) {
	var e Environment
	text := `{"A" : "1", "odd\udcff":"\udc80", "q\"}": "{\\\"" , "":""}`
	if err := json.Unmarshal([]byte(text), &e); err != nil {
		t.Fatal(err)
	}
	want := Environment{"A": "1", "odd\xff": "\x80", "q\"}": "{\\\"", "": ""}
	if len(e) != len(want) {
		t.Fatalf("got %q", e)
	}
	for k, v := range want {
		if e[k] != v {
			t.Errorf("%q is %q, want %q", k, e[k], v)
		}
	}
	for _, text := range []string{`{"a":1}`, `{"a":null}`, `["a"]`, `"a"`, `{"a":{}}`, `1`} {
		var e Environment
		if err := json.Unmarshal([]byte(text), &e); err == nil {
			t.Errorf("%s is taken", text)
		}
	}
}

func FuzzName(f *testing.F) {
	for _, s := range []string{"", "a", "\xff\xfe", "é\x80", "\xed\xa0\x80", strings.Repeat("\"\\", 9)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		b, err := json.Marshal(Name(s))
		if err != nil {
			t.Fatal(err)
		}
		var back Name
		if err := json.Unmarshal(b, &back); err != nil || string(back) != s {
			t.Fatalf("%q came back as %q (%v)", s, back, err)
		}
	})
}
