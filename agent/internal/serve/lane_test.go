package serve

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"sandbox-operator.dev/agent/internal/wire"
)

// road is a lane as its client has it: the other ends of its pipes, and the connection of who brought them.
type road struct {
	*call
	in, out *os.File // what the client writes to, and reads from
	carrier *net.UnixConn
}

var laneID = func() string { return fmt.Sprintf("lane-%032x", rand.Uint64()) }

// lane brings a lane and asks for an operation.
func (a *agent) lane(id string) *road {
	a.Helper()
	stdin, in, err := os.Pipe()
	if err != nil {
		a.Fatal(err)
	}
	out, stdout, err := os.Pipe()
	if err != nil {
		a.Fatal(err)
	}
	conn, err := net.Dial("unix", a.listener.Addr().String())
	if err != nil {
		a.Fatal(err)
	}
	carrier := conn.(*net.UnixConn)
	rights := syscall.UnixRights(int(stdin.Fd()), int(stdout.Fd()))
	if _, _, err := carrier.WriteMsgUnix([]byte{LaneHello}, rights, nil); err != nil {
		a.Fatal(err)
	}
	stdin.Close()
	stdout.Close()
	if _, err := fmt.Fprintf(in, `{"op":"lane","id":%q}`+"\n", id); err != nil {
		a.Fatal(err)
	}
	r := &road{&call{a.TB, nil, wire.NewReader(out), wire.NewWriter(in)}, in, out, carrier}
	a.Cleanup(r.cut)
	_ = out.SetReadDeadline(time.Now().Add(60 * time.Second))
	return r
}

func (r *road) cut() {
	r.in.Close()
	r.out.Close()
	r.carrier.Close()
}

// joined waits until the agent has taken the lane.
func (r *road) joined() *road {
	r.Helper()
	if kind, b := r.next(); kind != wire.Reply || string(b) != "{}" {
		r.Fatalf("kind %d: %s", kind, b)
	}
	return r
}

func (r *road) refused(code wire.Code) {
	r.Helper()
	kind, b := r.next()
	var e wire.Error
	if err := json.Unmarshal(b, &e); kind != wire.Failed || err != nil || e.Code != code {
		r.Errorf("kind %d: %s (%v)", kind, b, err)
	}
	r.ended()
}

func (r *road) ended() {
	r.Helper()
	if b, err := io.ReadAll(r.out); err != nil || len(b) != 0 {
		r.Errorf("%d bytes, %v", len(b), err)
	}
	if _, err := r.carrier.Read(make([]byte, 1)); err != io.EOF {
		r.Errorf("who brought the lane is kept: %v", err)
	}
}

func TestAnUploadGoesOnOverALane(t *testing.T) {
	a := newAgent(t)
	c, id := a.connect(), laneID()
	s := c.open(request{"op": "write", "path": a.path("f"), "lane": id})
	s.send(wire.Data, []byte("by stream, "))
	l := a.lane(id).joined()
	s.send(wire.Data, []byte("still, "))
	s.send(wire.Switch, nil)
	big := bytes.Repeat([]byte("x"), wire.MaxMessage)
	l.send(wire.Data, []byte("by lane "))
	l.send(wire.Data, big)
	l.send(wire.End, nil)
	if r := s.rest(); r.err != nil || r.reply.String() != fmt.Sprintf(`{"bytes":%d}`, 26+len(big)) {
		t.Errorf("%v %s", r.err, r.reply.String())
	}
	l.ended()
	if got := a.get("f"); got != "by stream, still, by lane "+string(big) {
		t.Errorf("%d bytes: %.40s", len(got), got)
	}
}

func TestADownloadGoesOnOverALane(t *testing.T) {
	a := newAgent(t)
	content := strings.Repeat("0123456789abcdef", 1<<20)
	a.put("f", content)
	for _, op := range []string{"read", "archive"} {
		c, id := a.connect(), laneID()
		s := c.open(request{"op": op, "path": a.path("f"), "lane": id})
		l := a.lane(id).joined()
		s.send(wire.Switch, nil)
		var got bytes.Buffer
		take := func(from *call) wire.Kind {
			for {
				kind, b := from.next()
				if kind != wire.Reply {
					if kind == wire.End && string(b) != fmt.Sprintf(`{"bytes":%d}`, got.Len()) {
						t.Errorf("%s after %d", b, got.Len())
					}
					return kind
				}
				got.Write(b)
			}
		}
		if kind := take(s); kind != wire.Switched {
			t.Fatalf("kind %d on the stream", kind)
		}
		before := got.Len()
		if kind := take(l.call); kind != wire.End {
			t.Fatalf("kind %d on the lane", kind)
		}
		l.ended()
		if before == got.Len() || !strings.Contains(got.String(), content) {
			t.Errorf("%s: %d bytes by stream, %d in all", op, before, got.Len())
		}
	}
}

func TestAnArchiveIsUnpackedFromALane(t *testing.T) {
	a := newAgent(t)
	id := laneID()
	content := tarOf(t, file("a", strings.Repeat("a", 300_000)), file("b", "b"))
	s := a.connect().open(request{"op": "extract", "path": a.root, "lane": id})
	s.send(wire.Data, content[:1000])
	l := a.lane(id).joined()
	s.send(wire.Switch, nil)
	l.send(wire.Data, content[1000:])
	l.send(wire.End, nil)
	if r := s.rest(); r.err != nil || a.get("b") != "b" {
		t.Error(r.err)
	}
}

// Whatever breaks, in whatever moment: nothing is left, nobody waits for ever, and the old file is as it was.
func TestALaneThatBreaksLeavesNothing(t *testing.T) {
	for name, cut := range map[string]func(c *client, s *call, l *road){
		"lane":          func(_ *client, s *call, l *road) { l.cut(); s.rest() },
		"stdin":         func(_ *client, s *call, l *road) { l.in.Close(); s.rest() },
		"who brings it": func(_ *client, s *call, l *road) { l.carrier.Close(); s.rest() },
		"stream":        func(_ *client, s *call, _ *road) { s.reset() },
		"connection":    func(c *client, _ *call, _ *road) { c.session.Close() },
		"CANCEL": func(_ *client, s *call, _ *road) {
			s.send(wire.Cancel, nil)
			if r := s.rest(); r.code() != wire.Canceled {
				t.Error(r.err)
			}
		},
		"junk": func(_ *client, s *call, l *road) {
			l.send(wire.Resize, nil)
			if r := s.rest(); r.code() != wire.InvalidRequest {
				t.Error(r.err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAgent(t)
			a.put("f", "old")
			c, id := a.connect().resettable(), laneID()
			s := c.open(request{"op": "write", "path": a.path("f"), "lane": id})
			l := a.lane(id).joined()
			s.send(wire.Switch, nil)
			l.send(wire.Data, make([]byte, 100_000))
			eventually(t, "it is being written", a.writing)
			cut(c, s, l)
			eventually(t, "nothing is left", func() bool { return a.names() == "f" && !a.writing() })
			if a.get("f") != "old" {
				t.Error("the old file has changed")
			}
			if name != "lane" && name != "who brings it" {
				l.ended()
			}
			if n := length(&a.server.lanes); n != 0 {
				t.Errorf("%d operations still wait for a lane", n)
			}
		})
	}
}

func TestADownloadThatNobodyTakesFromItsLaneEndsWithItsStream(t *testing.T) {
	a := newAgent(t)
	a.put("f", strings.Repeat("x", 8<<20))
	c, id := a.connect().resettable(), laneID()
	s := c.open(request{"op": "read", "path": a.path("f"), "lane": id})
	l := a.lane(id).joined()
	s.send(wire.Switch, nil)
	for kind := wire.Reply; kind != wire.Switched; {
		kind, _ = s.next()
	}
	s.reset()
	eventually(t, "who brought the lane ends", func() bool {
		_ = l.carrier.SetReadDeadline(time.Now().Add(time.Millisecond))
		_, err := l.carrier.Read(make([]byte, 1))
		return err == io.EOF
	})
}

func TestLanesThatAreRefused(t *testing.T) {
	a := newAgent(t)
	a.lane(laneID()).refused(wire.NotFound)
	a.lane(strings.Repeat("x", 1000)).refused(wire.InvalidRequest)

	id := laneID()
	s := a.connect().open(request{"op": "write", "path": a.path("f"), "lane": id})
	s.send(wire.Data, []byte("x"))
	eventually(t, "it is being written", a.writing)
	first := a.lane(id).joined()
	a.lane(id).refused(wire.InvalidRequest)
	if r := a.connect().do(request{"op": "read", "path": a.path("f"), "lane": id}); r.code() != wire.InvalidRequest {
		t.Error(r.err)
	}
	s.send(wire.End, nil) // a lane need not be used
	if r := s.rest(); r.err != nil || a.get("f") != "x" {
		t.Error(r.err)
	}
	first.ended()
	a.lane(id).refused(wire.NotFound)

	for _, r := range []request{
		{"op": "write", "path": a.path("g"), "lane": "short"},
		{"op": "write", "path": a.path("g")}, // then there is nothing to switch to
		{"op": "lane", "id": laneID()},       // not on a stream
		{"op": "stat", "path": a.path("f"), "lane": laneID()},
	} {
		s := a.connect().open(r)
		_ = s.out.Send(wire.Switch, nil)
		if got := s.rest(); got.err == nil || got.code() != wire.InvalidRequest && got.code() != wire.UnknownOperation {
			t.Errorf("%v: %v", r, got.err)
		}
	}
	id = laneID()
	s = a.connect().open(request{"op": "write", "path": a.path("g"), "lane": id})
	s.send(wire.Switch, nil) // before there is a lane
	if r := s.rest(); r.code() != wire.InvalidRequest || a.names() != "f" {
		t.Error(r.err, a.names())
	}
}

// The lane is only another way for the content: what may be written, and read, is decided as ever.
func TestALaneIsNoWayAroundTheRules(t *testing.T) {
	a := newAgent(t)
	if err := os.Symlink("../outside", a.path("link")); err != nil {
		t.Fatal(err)
	}
	for path, code := range map[string]wire.Code{
		a.path("link/f"):  wire.PathEscapes,
		"/etc/passwd":     wire.OutsideRoots,
		a.readOnly + "/f": wire.ReadOnly,
	} {
		for _, op := range []string{"write", "extract"} {
			if r := a.connect().do(request{"op": op, "path": path, "lane": laneID()}); r.code() != code {
				t.Errorf("%s %s: %v", op, path, r.err)
			}
		}
	}
	if r := a.connect().do(request{"op": "write", "path": a.path("f"), "user": "12345", "lane": laneID()}); r.code() != wire.UnsupportedUser {
		t.Error(r.err)
	}
}

func TestDescriptorsThatAreNoLaneAreClosed(t *testing.T) {
	a := newAgent(t)
	for _, hello := range []byte{LaneHello, 0} {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		conn, err := net.Dial("unix", a.listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := conn.(*net.UnixConn).WriteMsgUnix([]byte{hello}, syscall.UnixRights(int(w.Fd())), nil); err != nil {
			t.Fatal(err)
		}
		w.Close()
		_ = r.SetReadDeadline(time.Now().Add(10 * time.Second))
		if _, err := r.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("hello %q: %v", hello, err)
		}
		r.Close()
		conn.Close()
	}
}

func length(m interface{ Range(func(_, _ any) bool) }) (n int) {
	m.Range(func(_, _ any) bool { n++; return true })
	return n
}
