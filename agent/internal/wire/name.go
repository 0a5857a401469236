package wire

import (
	"bytes"
	"errors"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// Name is a string of any bytes: a path, an argument, a variable. In JSON its bytes that are not UTF-8 are lone
// surrogates U+DC80..U+DCFF, as in Python's surrogateescape. encoding/json alone would replace them by U+FFFD, and
// the client could then not name the file it was told of.
type Name string

var (
	errNotString = errors.New("not a string")
	errSurrogate = errors.New("a lone surrogate that stands for no byte")
	errNotUTF8   = errors.New("not UTF-8")
)

const hex = "0123456789abcdef"

// AppendJSON appends the name as a JSON string.
func (n Name) AppendJSON(b []byte) []byte {
	b = append(b, '"')
	for i := 0; i < len(n); {
		c := n[i]
		if c < utf8.RuneSelf {
			i++
			switch {
			case c == '"' || c == '\\':
				b = append(b, '\\', c)
			case c < ' ' || c == 0x7f:
				b = append(b, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
			default:
				b = append(b, c)
			}
			continue
		}
		r, size := utf8.DecodeRuneInString(string(n[i:min(i+utf8.UTFMax, len(n))]))
		if r == utf8.RuneError && size == 1 {
			b = append(b, '\\', 'u', 'd', 'c', hex[c>>4], hex[c&15])
		} else {
			b = append(b, n[i:i+size]...)
		}
		i += size
	}
	return append(b, '"')
}

// MarshalJSON is AppendJSON for encoding/json.
func (n Name) MarshalJSON() ([]byte, error) { return n.AppendJSON(make([]byte, 0, len(n)+2)), nil }

// UnmarshalJSON takes a JSON string, or null for the empty name.
func (n *Name) UnmarshalJSON(b []byte) error {
	if string(b) == "null" {
		*n = ""
		return nil
	}
	s, err := unquote(b)
	*n = Name(s)
	return err
}

// unquote decodes a JSON string literal that encoding/json found well-formed.
func unquote(b []byte) (string, error) {
	if len(b) < 2 || b[0] != '"' || b[len(b)-1] != '"' {
		return "", errNotString
	}
	b = b[1 : len(b)-1]
	if !utf8.Valid(b) {
		return "", errNotUTF8
	}
	if bytes.IndexByte(b, '\\') < 0 {
		return string(b), nil
	}
	out := make([]byte, 0, len(b))
	for i := 0; i < len(b); {
		if b[i] != '\\' {
			out = append(out, b[i])
			i++
			continue
		}
		if i+1 == len(b) {
			return "", errNotString
		}
		switch c := b[i+1]; c {
		case '"', '\\', '/':
			out = append(out, c)
		case 'b':
			out = append(out, '\b')
		case 'f':
			out = append(out, '\f')
		case 'n':
			out = append(out, '\n')
		case 'r':
			out = append(out, '\r')
		case 't':
			out = append(out, '\t')
		case 'u':
			r := unit(b[i:])
			if r < 0 {
				return "", errNotString
			}
			i += 6
			if !utf16.IsSurrogate(r) {
				out = utf8.AppendRune(out, r)
				continue
			}
			if pair := utf16.DecodeRune(r, unit(b[i:])); pair != utf8.RuneError {
				out = utf8.AppendRune(out, pair)
				i += 6
			} else if r >= 0xdc80 && r <= 0xdcff {
				out = append(out, byte(r))
			} else {
				return "", errSurrogate
			}
			continue
		default:
			return "", errNotString
		}
		i += 2
	}
	return string(out), nil
}

// unit is the UTF-16 unit of the \uXXXX that b starts with, or -1.
func unit(b []byte) rune {
	if len(b) < 6 || b[0] != '\\' || b[1] != 'u' {
		return -1
	}
	v, err := strconv.ParseUint(string(b[2:6]), 16, 16)
	if err != nil {
		return -1
	}
	return rune(v)
}

// Environment is the `env` of exec: an object of names. It decodes itself because encoding/json would decode the
// keys, and lose their odd bytes.
type Environment map[Name]Name

// UnmarshalJSON takes an object of strings, or null.
func (e *Environment) UnmarshalJSON(b []byte) error {
	if string(b) == "null" {
		return nil
	}
	if b[0] != '{' {
		return errors.New("not an object")
	}
	*e = Environment{}
	for b = skip(b[1:], " \t\r\n,"); b[0] != '}'; b = skip(b, " \t\r\n,") {
		key, rest, err := literal(b)
		if err != nil {
			return err
		}
		value, rest, err := literal(skip(rest, " \t\r\n:"))
		if err != nil {
			return err
		}
		(*e)[Name(key)] = Name(value)
		b = rest
	}
	return nil
}

func skip(b []byte, chars string) []byte { return bytes.TrimLeft(b, chars) }

// literal decodes the string that b starts with, and gives what follows it.
func literal(b []byte) (string, []byte, error) {
	if len(b) == 0 || b[0] != '"' {
		return "", nil, errNotString
	}
	for i := 1; i < len(b); i++ {
		switch b[i] {
		case '\\':
			i++
		case '"':
			s, err := unquote(b[:i+1])
			return s, b[i+1:], err
		}
	}
	return "", nil, errNotString
}
