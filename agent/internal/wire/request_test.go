package wire

import (
	"errors"
	"reflect"
	"testing"
)

func code(err error) Code {
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

func TestRequestsAreDecoded(t *testing.T) {
	got, err := Decode([]byte(`{"op":"exec","argv":["a","\udcff"],"env":{"K":"v"},"tty":true,"rows":3,"user":1000,"timeout_ms":5}`))
	want := &Exec{Common: Common{"exec", "1000"}, Argv: []Name{"a", "\xff"}, Env: Environment{"K": "v"}, TTY: true, Rows: 3, TimeoutMS: 5}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Fatalf("got %+v, %v", got, err)
	}
	if got, err := Decode([]byte(`{"op":"stat","path":"/a","user":null,"follow":null}`)); err != nil || got.(*Stat).Path != "/a" {
		t.Fatalf("null is not absent: %+v, %v", got, err)
	}
}

func TestRequestsAreRefused(t *testing.T) {
	for line, want := range map[string]Code{
		``:                                   InvalidRequest,
		`null`:                               InvalidRequest,
		`[]`:                                 InvalidRequest,
		`{}`:                                 InvalidRequest,
		`{"op":1}`:                           InvalidRequest,
		`{"op":"format"}`:                    UnknownOperation,
		`{"op":"stat","path":"/a","deep":1}`: InvalidRequest,
		`{"op":"stat","path":1}`:             InvalidRequest,
		`{"op":"stat","argv":[]}`:            InvalidRequest, // another operation's field
		`{"op":"stat","path":"/a"} x`:        InvalidRequest,
		`{"op":"stat","path":"/a"}{}`:        InvalidRequest,
		`{"op":"exec","rows":70000}`:         InvalidRequest,
		`{"op":"exec","user":-1}`:            InvalidRequest,
		`{"op":"exec","user":1.5}`:           InvalidRequest,
		`{"op":"exec","env":{"a":1}}`:        InvalidRequest,
		`{"op":"exec","argv":["\ud800"]}`:    InvalidRequest,
		`{"op":"attach","offset":-1}`:        InvalidRequest,
	} {
		if _, err := Decode([]byte(line)); code(err) != want {
			t.Errorf("%s: %v, want %s", line, err, want)
		}
	}
}

func FuzzDecode(f *testing.F) {
	for op := range requests {
		f.Add([]byte(`{"op":"` + op + `","path":"/a","user":"x"}`))
	}
	f.Add([]byte(`{"op":"exec","env":{"a":"b","\udc80":"\\"},"argv":[null]}`))
	f.Add([]byte(`{"op":"exec","env":{`))
	f.Fuzz(func(t *testing.T, line []byte) {
		request, err := Decode(line)
		if err != nil && code(err) == "" {
			t.Fatalf("an error that is none of the protocol: %v", err)
		}
		if (err == nil) != (request != nil) {
			t.Fatal("neither a request nor an error")
		}
	})
}
