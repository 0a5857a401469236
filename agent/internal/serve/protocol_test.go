package serve

import (
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"sandbox-operator.dev/agent/internal/wire"
)

func TestMalformedRequests(t *testing.T) {
	c := newAgent(t).connect()
	for line, want := range map[string]wire.Code{
		"\n":                           wire.InvalidRequest,
		"hello\n":                      wire.InvalidRequest,
		"{\"op\":\"hello\",\"x\":1}\n": wire.InvalidRequest,
		"{\"op\":\"nothing\"}\n":       wire.UnknownOperation,
		"\x00\xff\n":                   wire.InvalidRequest,
		`{"op":"hello","user":"` + strings.Repeat("x", 1<<20) + "\"}\n": wire.InvalidRequest,
	} {
		if r := c.openLine(line).rest(); r.code() != want {
			t.Errorf("%.40q: %v", line, r.err)
		}
	}
	for _, messages := range []string{
		"\x00\x00\x20\x00\x00", // too long
		"\x01\x00\x00\x00\x01x", "\x02\x00\x00\x00\x00", "\x02\x00\x00\x00\x01\x00", "\x02\x00\x00\x00\x01\xff", "\x03\x00\x00\x00\x01x", "\x09\x00\x00\x00\x00",
	} {
		s := c.openLine(`{"op":"exec","argv":["sleep","100"],"stdin":true}` + "\n" + messages)
		if r := s.rest(); r.code() != wire.InvalidRequest {
			t.Errorf("%q: %v", messages, r.err)
		}
	}
	eventually(t, "nothing is left running", func() bool { return len(table.List()) == 0 })
	if r := c.run("true"); r.exit == nil || r.exit.Code != 0 {
		t.Fatal("the connection did not survive")
	}
}

func TestAConnectionThatIsNotYamux(t *testing.T) {
	a := newAgent(t)
	conn, err := net.Dial("unix", a.listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.WriteString(conn, "GET / HTTP/1.1\r\n\r\n")
	_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := io.ReadAll(conn); err != nil {
		t.Fatalf("it is not ended: %v", err)
	}
	if r := a.connect().run("true"); r.exit.Code != 0 {
		t.Fatal(r.err)
	}
}

func TestManyStreamsAndConnections(t *testing.T) {
	a := newAgent(t)
	var wg sync.WaitGroup
	for range 4 {
		c := a.connect()
		for i := range 50 {
			wg.Go(func() {
				word := fmt.Sprint(i)
				if r := c.run("echo", word); r.stdout.String() != word+"\n" {
					t.Errorf("%q %v", r.stdout.String(), r.err)
				}
			})
		}
	}
	wg.Wait()
}

func TestTooManyStreams(t *testing.T) {
	a := newAgent(t)
	c := a.connect()
	var held []*call
	for range MaxStreams {
		held = append(held, c.openLine(`{"op":"exec"`)) // never a whole line
	}
	eventually(t, "all are there", func() bool { return a.server.streams.Load() == MaxStreams })
	if r := c.openLine(`{"op":"hello"}` + "\n").rest(); r.code() != wire.TooMany {
		t.Errorf("%v", r.err)
	}
	for _, s := range held {
		s.conn.Close()
	}
	eventually(t, "all are gone", func() bool { return a.server.streams.Load() == 0 })
	if r := c.do(request{"op": "hello"}); r.err != nil {
		t.Error(r.err)
	}
}

func TestNothingIsLeftOfStreams(t *testing.T) {
	a := newAgent(t)
	a.put("f", strings.Repeat("x", 1<<20))
	c := a.connect().resettable()
	c.run("true")
	before := runtime.NumGoroutine()
	for i := range 100 {
		s := c.open(request{"op": "read", "path": a.path("f")})
		switch i % 3 {
		case 0:
			s.rest()
		case 1:
			s.reset()
		case 2:
			s.conn.Close()
		}
	}
	eventually(t, "goroutines end", func() bool { return runtime.NumGoroutine() <= before+5 })
	eventually(t, "streams end", func() bool { return a.server.streams.Load() == 0 })
}

func TestCancelOfContent(t *testing.T) {
	a := newAgent(t)
	c := a.connect()
	a.put("f", strings.Repeat("x", 32<<20))
	s := c.open(request{"op": "read", "path": a.path("f")})
	s.send(wire.Cancel, nil)
	if r := s.rest(); r.code() != wire.Canceled {
		t.Fatal(r.err, r.ended)
	}
}

func TestForward(t *testing.T) {
	c := newAgent(t).connect()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				b, _ := io.ReadAll(conn) // up to the client's end
				_, _ = fmt.Fprintf(conn, "got %d", len(b))
			}()
		}
	}()
	port := l.Addr().(*net.TCPAddr).Port
	s := c.open(request{"op": "forward", "port": port})
	if kind, b := s.next(); kind != wire.Reply || len(b) != 0 {
		t.Fatal(kind, b)
	}
	if _, err := s.conn.Write(make([]byte, 3<<20)); err != nil {
		t.Fatal(err)
	}
	s.conn.Close()
	if b, err := io.ReadAll(s.in.Buffered()); err != nil || string(b) != "got 3145728" {
		t.Fatalf("%q %v", b, err)
	}
	l.Close()
	if r := c.do(request{"op": "forward", "port": port}); r.code() != wire.ConnectionRefused {
		t.Fatal(r.err)
	}
	for _, port := range []int{0, -1, 70000} {
		if r := c.do(request{"op": "forward", "port": port}); r.code() != wire.InvalidRequest {
			t.Fatal(r.err)
		}
	}
}

func TestAPanicIsAnError(t *testing.T) {
	a := newAgent(t)
	roots := a.server.Roots
	a.server.Roots = nil // hello then reads past its end
	c := a.connect()
	if r := c.do(request{"op": "hello"}); r.code() != wire.IO {
		t.Fatal(r.err)
	}
	a.server.Roots = roots
	if r := c.do(request{"op": "hello"}); r.err != nil {
		t.Fatal(r.err)
	}
}
