package serve

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/yamux"
	"golang.org/x/sys/unix"

	"sandbox-operator.dev/agent/internal/files"
	"sandbox-operator.dev/agent/internal/process"
	"sandbox-operator.dev/agent/internal/wire"
)

// table is shared by the tests, since a process can have only one reaper.
var table = process.NewTable()

func TestMain(m *testing.M) {
	// Orphans come to this process as they come to PID 1.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		panic(err)
	}
	if signal.Ignored(syscall.SIGINT) { // as in a background job; children would inherit that
		signal.Notify(make(chan os.Signal, 1), syscall.SIGINT)
	}
	go table.Reap()
	os.Exit(m.Run())
}

// agent is a server on a unix socket with a workspace, a grant and a read-only grant.
type agent struct {
	testing.TB
	server                *Server
	root, grant, readOnly string
	listener              net.Listener
}

func newAgent(t testing.TB) *agent {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	a := &agent{TB: t, root: filepath.Join(dir, "workspace"), grant: filepath.Join(dir, "grant"), readOnly: filepath.Join(dir, "ro")}
	for _, d := range []string{a.root, a.grant, a.readOnly, filepath.Join(dir, "outside")} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	a.server = &Server{Table: table, Roots: files.Roots{{Path: a.root}, {Path: a.grant}, {Path: a.readOnly, ReadOnly: true}}}
	run, err := os.MkdirTemp("", "agent") // t.TempDir may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(run) })
	if a.listener, err = Listen(filepath.Join(run, "s")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.listener.Close() })
	go a.server.Serve(a.listener)
	return a
}

func (a *agent) path(name string) string { return filepath.Join(a.root, name) }

func (a *agent) put(name, content string) {
	a.Helper()
	if err := os.MkdirAll(filepath.Dir(a.path(name)), 0o755); err != nil {
		a.Fatal(err)
	}
	if err := os.WriteFile(a.path(name), []byte(content), 0o644); err != nil {
		a.Fatal(err)
	}
}

// writing says whether a file beneath the workspace is open that has no name yet.
func (a *agent) writing() bool {
	fds, _ := os.ReadDir("/proc/self/fd")
	for _, fd := range fds {
		if target, _ := os.Readlink("/proc/self/fd/" + fd.Name()); strings.HasPrefix(target, a.root+"/#") {
			return true
		}
	}
	return false
}

// client is one connection.
type client struct {
	testing.TB
	conn    net.Conn
	session *yamux.Session
}

func (a *agent) connect() *client {
	a.Helper()
	conn, err := net.Dial("unix", a.listener.Addr().String())
	if err != nil {
		a.Fatal(err)
	}
	conf := yamux.DefaultConfig()
	conf.MaxStreamWindowSize = 4 << 20
	conf.StreamOpenTimeout = 0 // it would leave a goroutine for each stream that is reset
	conf.LogOutput = io.Discard
	session, err := yamux.Client(conn, conf)
	if err != nil {
		a.Fatal(err)
	}
	a.Cleanup(func() { session.Close() })
	return &client{a.TB, conn, session}
}

type request map[string]any

// call is one stream.
type call struct {
	testing.TB
	conn *yamux.Stream
	in   *wire.Reader
	out  *wire.Writer
}

func (c *client) open(r request) *call {
	c.Helper()
	b, err := json.Marshal(r)
	if err != nil {
		c.Fatal(err)
	}
	return c.openLine(string(b) + "\n")
}

func (c *client) openLine(line string) *call {
	c.Helper()
	conn, err := c.session.OpenStream()
	if err != nil {
		c.Fatal(err)
	}
	if _, err := io.WriteString(conn, line); err != nil {
		c.Fatal(err)
	}
	_ = conn.SetReadDeadline(time.Now().Add(60 * time.Second))
	return &call{c.TB, conn, wire.NewReader(conn), wire.NewWriter(conn)}
}

func (c *call) send(kind wire.Kind, payload []byte) {
	c.Helper()
	if err := c.out.Send(kind, payload); err != nil {
		c.Fatal(err)
	}
}

// next gives one message.
func (c *call) next() (wire.Kind, []byte) {
	c.Helper()
	kind, _, err := c.in.Next()
	if err != nil {
		c.Fatalf("no message: %v", err)
	}
	b, err := io.ReadAll(c.in)
	if err != nil {
		c.Fatal(err)
	}
	return kind, b
}

// result is all that a call answered.
type result struct {
	stdout, stderr, reply bytes.Buffer
	exit                  *process.Exit
	err                   *wire.Error
	trailer               string
	ended                 bool
}

func (r *result) code() wire.Code {
	if r.err == nil {
		return ""
	}
	return r.err.Code
}

// rest takes everything up to the end of the stream, and closes it.
func (c *call) rest() *result {
	c.Helper()
	r := &result{}
	for {
		kind, _, err := c.in.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			c.Fatalf("the stream broke: %v", err)
		}
		b, _ := io.ReadAll(c.in)
		switch kind {
		case wire.Reply:
			r.reply.Write(b)
		case wire.Stdout:
			r.stdout.Write(b)
		case wire.Stderr:
			r.stderr.Write(b)
		case wire.Exit:
			r.exit = &process.Exit{}
			err = json.Unmarshal(b, r.exit)
		case wire.Failed:
			r.err = &wire.Error{}
			err = json.Unmarshal(b, r.err)
		case wire.End:
			r.ended, r.trailer = true, string(b)
		default:
			c.Fatalf("message kind %d", kind)
		}
		if err != nil {
			c.Fatalf("%q: %v", b, err)
		}
	}
	c.conn.Close()
	return r
}

func (c *client) do(r request) *result {
	c.Helper()
	return c.open(r).rest()
}

// upload is a call with content.
func (c *client) upload(r request, content []byte) *result {
	c.Helper()
	s := c.open(r)
	if err := s.out.Send(wire.Data, content); err == nil {
		_ = s.out.Send(wire.End, nil)
	} // else it was refused already
	return s.rest()
}

func (c *client) run(argv ...string) *result {
	c.Helper()
	return c.do(request{"op": "exec", "argv": argv})
}

func (c *client) sh(script string, more ...request) *result {
	c.Helper()
	r := request{"op": "exec", "argv": []string{"sh", "-c", script}}
	for _, m := range more {
		for k, v := range m {
			r[k] = v
		}
	}
	return c.do(r)
}

// reset ends a stream as a client does that has lost interest: yamux has no call for it.
func (c *call) reset() {
	c.Helper()
	// A frame of the kind "window update" with the flag RST.
	id := c.conn.StreamID()
	frame := []byte{0, 1, 0, 8, byte(id >> 24), byte(id >> 16), byte(id >> 8), byte(id), 0, 0, 0, 0}
	if _, err := sessionConn[c.conn.Session()].Write(frame); err != nil {
		c.Fatal(err)
	}
}

var sessionConn = map[*yamux.Session]net.Conn{}

// resettable notes the connection of a client, for reset. Only when nothing else is being sent.
func (c *client) resettable() *client {
	sessionConn[c.session] = c.conn
	return c
}

func alive(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	f := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	return f[0][0] != 'Z' && syscall.Kill(pid, 0) == nil
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within 10 s: %s", what)
		}
	}
}
