package serve

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"sandbox-operator.dev/agent/internal/files"
	"sandbox-operator.dev/agent/internal/wire"
)

func (a *agent) get(name string) string {
	a.Helper()
	b, err := os.ReadFile(a.path(name))
	if err != nil {
		a.Fatal(err)
	}
	return string(b)
}

func (a *agent) link(target, name string) {
	a.Helper()
	if err := os.Symlink(target, a.path(name)); err != nil {
		a.Fatal(err)
	}
}

func (a *agent) mode(name string) string {
	a.Helper()
	st, err := os.Lstat(a.path(name))
	if err != nil {
		a.Fatal(err)
	}
	return fmt.Sprintf("%o", st.Sys().(*syscall.Stat_t).Mode&0o7777)
}

// names gives everything in the workspace.
func (a *agent) names() string {
	a.Helper()
	var all []string
	_ = filepath.Walk(a.root, func(p string, _ os.FileInfo, err error) error {
		if err == nil && p != a.root {
			rel, _ := filepath.Rel(a.root, p)
			all = append(all, rel)
		}
		return nil
	})
	return strings.Join(all, " ")
}

type entry struct {
	Name, Kind, Link, Path string
	Size                   int64
	Mode                   uint32
	Mtime                  int64 `json:"mtime_ns"`
}

func TestWriteAndRead(t *testing.T) {
	a := newAgent(t)
	c := a.connect()
	content := make([]byte, 5<<20)
	_, _ = rand.Read(content)
	r := c.upload(request{"op": "write", "path": a.path("f")}, content)
	if r.reply.String() != fmt.Sprintf(`{"bytes":%d}`, len(content)) {
		t.Fatalf("%q %v", r.reply.String(), r.err)
	}
	r = c.do(request{"op": "read", "path": a.path("f")})
	if !bytes.Equal(r.reply.Bytes(), content) || r.trailer != fmt.Sprintf(`{"bytes":%d}`, len(content)) {
		t.Fatalf("%d bytes, %q", r.reply.Len(), r.trailer)
	}
	r = c.do(request{"op": "read", "path": a.path("f"), "offset": 1000, "limit": 50})
	if !bytes.Equal(r.reply.Bytes(), content[1000:1050]) {
		t.Fatal("a part")
	}
	if r := c.do(request{"op": "read", "path": a.path("f"), "offset": 6 << 20}); r.reply.Len() != 0 || !r.ended {
		t.Fatal("beyond the end")
	}
	if r := c.upload(request{"op": "write", "path": a.path("empty")}, nil); r.code() != "" || a.get("empty") != "" {
		t.Fatal(r.err)
	}
	if n := a.names(); n != "empty f" {
		t.Fatal(n)
	}
}

func TestModesOfWrites(t *testing.T) {
	a := newAgent(t)
	c := a.connect()
	old := syscall.Umask(0o077)
	defer syscall.Umask(old)
	write := func(name string, more request) {
		r := request{"op": "write", "path": a.path(name)}
		for k, v := range more {
			r[k] = v
		}
		if r := c.upload(r, []byte("x")); r.err != nil {
			t.Fatal(r.err)
		}
	}
	write("new", nil)
	write("exact", request{"mode": 0o4666})
	a.put("old", "")
	if err := os.Chmod(a.path("old"), 0o751); err != nil {
		t.Fatal(err)
	}
	write("old", nil)
	write("zero", request{"mode": 0})
	for name, want := range map[string]string{"new": "644", "exact": "4666", "old": "751", "zero": "0"} {
		if got := a.mode(name); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
}

func TestWhatCannotBeWritten(t *testing.T) {
	a := newAgent(t)
	c := a.connect()
	a.put("file", "old")
	a.put("dir/x", "")
	a.link("nowhere", "dangling")
	a.link("file", "link")
	for _, test := range []struct {
		r    request
		want wire.Code
	}{
		{request{"path": a.path("file"), "exclusive": true}, wire.Exists},
		{request{"path": a.path("dangling"), "exclusive": true}, wire.Exists},
		{request{"path": a.path("link"), "exclusive": true}, wire.Exists},
		{request{"path": a.path("dir"), "exclusive": true}, wire.Exists},
		{request{"path": a.path("dir")}, wire.IsADirectory},
		{request{"path": a.root}, wire.IsADirectory},
		{request{"path": a.path("no/file")}, wire.NotFound},
		{request{"path": a.path("file/x")}, wire.NotADirectory},
		{request{"path": a.path("file/x"), "parents": true}, wire.NotADirectory},
		{request{"path": a.readOnly + "/x"}, wire.ReadOnly},
		{request{"path": a.readOnly + "/d/x", "parents": true}, wire.ReadOnly},
		{request{"path": "/etc/x"}, wire.OutsideRoots},
		{request{"path": a.root + "x"}, wire.OutsideRoots},
		{request{"path": a.root + "/../outside/x"}, wire.PathEscapes},
		{request{"path": "relative"}, wire.InvalidRequest},
		{request{"path": ""}, wire.InvalidRequest},
		{request{"path": a.path("a\x00b")}, wire.InvalidRequest},
		{request{"path": a.path("x"), "mode": 0o10000}, wire.InvalidRequest},
		{request{"path": a.path(strings.Repeat("x", 300))}, wire.InvalidRequest},
	} {
		test.r["op"] = "write"
		if r := c.upload(test.r, []byte("new")); r.code() != test.want {
			t.Errorf("%v: %v, want %s", test.r, r.err, test.want)
		}
	}
	if a.get("file") != "old" || a.names() != "dangling dir dir/x file link" {
		t.Fatal(a.names())
	}
	for _, name := range []string{"new", "sub/new"} {
		if r := c.upload(request{"op": "write", "path": a.path(name), "exclusive": true, "parents": true}, []byte("x")); r.err != nil {
			t.Error(r.err)
		}
	}
}

func TestACutUploadLeavesNothing(t *testing.T) {
	a := newAgent(t)
	for name, cut := range map[string]func(*client, *call){
		"connection": func(c *client, _ *call) { c.conn.Close() },
		"reset":      func(_ *client, s *call) { s.reset() },
		"close":      func(_ *client, s *call) { s.conn.Close() },
		"cancel": func(_ *client, s *call) {
			s.send(wire.Cancel, nil)
			if r := s.rest(); r.code() != wire.Canceled {
				t.Error(r.err)
			}
		},
		"junk": func(_ *client, s *call) {
			s.send(wire.Kind(9), nil)
			if r := s.rest(); r.code() != wire.InvalidRequest {
				t.Error(r.err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := a.connect().resettable()
			a.put("kept", "old")
			for _, path := range []string{"new", "kept"} {
				s := c.open(request{"op": "write", "path": a.path(path)})
				s.send(wire.Data, make([]byte, 200_000))
				eventually(t, "it is being written", a.writing)
				var seen []entry
				other := a.connect()
				if err := json.Unmarshal(other.do(request{"op": "list", "path": a.root}).reply.Bytes(), &seen); err != nil || len(seen) != 1 {
					t.Errorf("an unfinished upload is listed: %v %v", seen, err)
				}
				cut(c, s)
				eventually(t, "nothing is left", func() bool { return a.names() == "kept" && !a.writing() })
				if name == "connection" {
					c = a.connect()
				}
			}
			if a.get("kept") != "old" {
				t.Error("the old file is gone")
			}
		})
	}
}

func TestLinks(t *testing.T) {
	a := newAgent(t)
	c := a.connect()
	outside := filepath.Join(filepath.Dir(a.root), "outside")
	if err := os.WriteFile(outside+"/secret", []byte("secret"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(a.readOnly+"/r", []byte("ro"), 0o644); err != nil {
		t.Fatal(err)
	}
	a.put("d/e/file", "content")
	a.put("top", "top")
	for name, target := range map[string]string{
		"rel": "d/e/file", "abs": a.path("d/e/file"), "absdir": a.path("d"), "d/up": "../top", "d/e/upup": "../../top",
		"twice": "abs", "self": ".", "d/parent": "..", "loop": "loop", "out": outside + "/secret", "outdir": outside,
		"outrel": "../outside/secret", "away": "/etc/passwd", "round": "../workspace/top", "dots": a.root + "/d/../top",
		"ro": a.readOnly, "rorel": "../ro/r", "dangling": "d/e/new", "danglingabs": a.path("d/new"), "danglingout": outside + "/new",
		"d/e/deep": "../../absdir/e/../up", "slash": "/",
	} {
		a.link(target, name)
	}
	for name, want := range map[string]string{
		"rel": "content", "abs": "content", "absdir/e/file": "content", "d/up": "top", "d/e/upup": "top", "twice": "content",
		"self/self/top": "top", "d/parent/top": "top", "round": "top", "dots": "top", "ro/r": "ro", "rorel": "ro",
		"absdir/parent/self/d/up": "top", "d/e/deep": "top",
	} {
		if r := c.do(request{"op": "read", "path": a.path(name)}); r.reply.String() != want {
			t.Errorf("%s: %q %v", name, r.reply.String(), r.err)
		}
	}
	for name, want := range map[string]wire.Code{
		"out": wire.PathEscapes, "outdir/secret": wire.PathEscapes, "outrel": wire.PathEscapes, "away": wire.PathEscapes,
		"loop": wire.IO, "dangling": wire.NotFound, "slash/etc/passwd": wire.PathEscapes, "slash": wire.PathEscapes,
	} {
		if r := c.do(request{"op": "read", "path": a.path(name)}); r.code() != want {
			t.Errorf("%s: %v, want %s", name, r.err, want)
		}
	}
	for name, want := range map[string]wire.Code{
		"out": wire.PathEscapes, "outdir/x": wire.PathEscapes, "danglingout": wire.PathEscapes, "ro/x": wire.ReadOnly,
		"rorel": wire.ReadOnly, "rel": "", "abs": "", "dangling": "", "danglingabs": "",
	} {
		if r := c.upload(request{"op": "write", "path": a.path(name)}, []byte("by "+name)); r.code() != want {
			t.Errorf("writing %s: %v, want %q", name, r.err, want)
		}
	}
	if a.get("d/e/file") != "by rel" && a.get("d/e/file") != "by abs" || a.get("d/e/new") != "by dangling" || a.get("d/new") != "by danglingabs" {
		t.Error("not written where the link leads")
	}
	if _, err := os.Lstat(outside + "/new"); err == nil {
		t.Error("written outside")
	}
	var e entry
	if err := json.Unmarshal(c.do(request{"op": "stat", "path": a.path("absdir/up"), "follow": true}).reply.Bytes(), &e); err != nil || e.Path != a.path("top") || e.Kind != "file" {
		t.Errorf("%+v %v", e, err)
	}
	if err := json.Unmarshal(c.do(request{"op": "stat", "path": a.path("absdir/up")}).reply.Bytes(), &e); err != nil || e.Path != a.path("d/up") || e.Kind != "link" || e.Link != "../top" {
		t.Errorf("%+v %v", e, err)
	}
	// A link is removed itself.
	for _, name := range []string{"outdir", "rel", "loop", "ro"} {
		if r := c.do(request{"op": "remove", "path": a.path(name), "recursive": true}); r.reply.String() != `{"removed":1}` {
			t.Errorf("%s: %s %v", name, r.reply.String(), r.err)
		}
	}
	if _, err := os.Stat(outside + "/secret"); err != nil {
		t.Error(err)
	}
	if r := c.do(request{"op": "remove", "path": a.path("d"), "recursive": true}); r.err != nil {
		t.Error(r.err)
	}
	if a.get("top") != "top" {
		t.Error("followed")
	}
}

func TestListAndStat(t *testing.T) {
	a := newAgent(t)
	c := a.connect()
	a.put("b", "12345")
	a.put("a/x", "")
	a.put("odd\xff", "")
	a.link("b", "l")
	if err := syscall.Mkfifo(a.path("pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := c.do(request{"op": "list", "path": a.root})
	var es []entry
	if err := json.Unmarshal(r.reply.Bytes(), &es); err != nil {
		t.Fatalf("%v in %s", err, r.reply.String())
	}
	var got []string
	for _, e := range es {
		got = append(got, e.Kind+" "+e.Name+" "+e.Link)
	}
	if s := strings.Join(got, ","); s != "directory a ,file b ,link l b,file odd\ufffd ,fifo pipe " {
		t.Fatalf("%q", s)
	}
	if !strings.Contains(r.reply.String(), `"name":"odd\udcff"`) {
		t.Fatal(r.reply.String())
	}
	if es[1].Size != 5 || es[1].Mode != 0o644 || time.Since(time.Unix(0, es[1].Mtime)) > time.Minute {
		t.Fatalf("%+v", es[1])
	}
	line := `{"op":"stat","path":"` + a.root + `/odd\udcff"}` + "\n"
	if r := c.openLine(line).rest(); r.err != nil || !strings.Contains(r.reply.String(), `/odd\udcff"`) {
		t.Fatal(r.err)
	}
	for _, test := range []struct {
		op, path string
		want     wire.Code
	}{
		{"list", "b", wire.NotADirectory}, {"list", "none", wire.NotFound}, {"stat", "none", wire.NotFound}, {"stat", "none/x", wire.NotFound},
		{"stat", "b/x", wire.NotADirectory}, {"read", "a", wire.IsADirectory}, {"read", "", wire.IsADirectory}, {"read", "none", wire.NotFound},
		{"read", "pipe", wire.InvalidRequest}, {"write", "pipe", wire.InvalidRequest},
	} {
		if r := c.do(request{"op": test.op, "path": a.path(test.path)}); r.code() != test.want {
			t.Errorf("%s %s: %v, want %s", test.op, test.path, r.err, test.want)
		}
	}
	if r := c.do(request{"op": "list", "path": a.path("a/../a//./")}); r.err != nil {
		t.Error(r.err)
	}
}

func TestALargeDirectory(t *testing.T) {
	a := newAgent(t)
	c := a.connect()
	const n = 20_000
	for i := range n {
		a.put(fmt.Sprintf("d/%06d", i), "")
	}
	var es []entry
	r := c.do(request{"op": "list", "path": a.path("d")})
	if err := json.Unmarshal(r.reply.Bytes(), &es); err != nil || len(es) != n || es[n-1].Name != fmt.Sprintf("%06d", n-1) {
		t.Fatalf("%d %v", len(es), err)
	}
	if r.trailer != fmt.Sprintf(`{"bytes":%d}`, r.reply.Len()) {
		t.Fatal(r.trailer)
	}
	if r := c.do(request{"op": "remove", "path": a.path("d"), "recursive": true}); r.reply.String() != fmt.Sprintf(`{"removed":%d}`, n+1) {
		t.Fatal(r.reply.String(), r.err)
	}
}

func TestMkdirRemoveMove(t *testing.T) {
	a := newAgent(t)
	c := a.connect()
	a.put("f", "f")
	a.put("d/x", "x")
	a.link("d", "ld")
	step := func(r request, want wire.Code) {
		t.Helper()
		if got := c.do(r); got.code() != want {
			t.Errorf("%v: %v, want %q", r, got.err, want)
		}
	}
	mkdir := func(name string, more request, want wire.Code) {
		t.Helper()
		r := request{"op": "mkdir", "path": a.path(name)}
		for k, v := range more {
			r[k] = v
		}
		step(r, want)
	}
	mkdir("m", nil, "")
	mkdir("m", nil, wire.Exists)
	mkdir("m", request{"parents": true}, "")
	mkdir("ld", request{"parents": true}, "")
	mkdir("ld", nil, wire.Exists)
	mkdir("f", request{"parents": true}, wire.Exists)
	mkdir("p/q/r", nil, wire.NotFound)
	mkdir("p/q/r", request{"parents": true, "mode": 0o2770}, "")
	mkdir("", request{"parents": true}, "")
	if a.mode("p/q/r") != "2770" || a.mode("p") != "755" {
		t.Error(a.mode("p/q/r"), a.mode("p"))
	}
	remove := func(name string, more request, want wire.Code) {
		t.Helper()
		r := request{"op": "remove", "path": a.path(name)}
		for k, v := range more {
			r[k] = v
		}
		step(r, want)
	}
	remove("p", nil, wire.NotEmpty)
	remove("p", request{"recursive": true}, "")
	remove("p", nil, wire.NotFound)
	remove("p", request{"missing_ok": true}, "")
	remove("p/q/r", request{"missing_ok": true}, "")
	remove("m", nil, "")
	remove("", request{"recursive": true}, wire.InvalidRequest)
	step(request{"op": "remove", "path": a.grant, "recursive": true}, wire.InvalidRequest)
	step(request{"op": "remove", "path": a.readOnly + "/x"}, wire.ReadOnly)

	move := func(from, to string, replace bool, want wire.Code) {
		t.Helper()
		step(request{"op": "move", "source": a.path(from), "destination": a.path(to), "replace": replace}, want)
	}
	a.put("g", "g")
	move("f", "g", false, wire.Exists)
	move("f", "g", true, "")
	if a.get("g") != "f" {
		t.Error("not replaced")
	}
	move("f", "h", false, wire.NotFound)
	move("g", "d", true, wire.IsADirectory)
	move("d", "g", true, wire.NotADirectory)
	move("d", "d/y", false, wire.InvalidRequest)
	move("d", "no/such", false, wire.NotFound)
	move("", "z", false, wire.InvalidRequest)
	move("d", "e", false, "")
	a.put("n/full", "")
	move("e", "n", true, wire.NotEmpty)
	move("ld", "moved", false, "")
	if target, _ := os.Readlink(a.path("moved")); target != "d" {
		t.Error(target)
	}
	step(request{"op": "move", "source": a.path("e"), "destination": a.grant + "/e"}, "")
	step(request{"op": "move", "source": a.grant + "/e", "destination": a.readOnly + "/e"}, wire.ReadOnly)
	step(request{"op": "move", "source": a.path("g"), "destination": "/etc/g"}, wire.OutsideRoots)
}

func TestAGrantWithinTheWorkspace(t *testing.T) {
	a := newAgent(t)
	a.put("tools/bin/x", "x")
	a.server.Roots[2] = &files.Root{Path: a.path("tools"), ReadOnly: true}
	a.link("tools/bin", "bin")
	c := a.connect()
	for _, r := range []request{
		{"op": "write", "path": a.path("bin/x")}, {"op": "remove", "path": a.path("bin/x")}, {"op": "mkdir", "path": a.path("bin/d/e"), "parents": true},
	} {
		if got := c.do(r); got.code() != wire.ReadOnly {
			t.Errorf("%v: %v", r, got.err)
		}
	}
	if r := c.do(request{"op": "read", "path": a.path("bin/x")}); r.reply.String() != "x" {
		t.Error(r.err)
	}
	a.put("up/x", "")
	if r := c.do(request{"op": "move", "source": a.path("tools"), "destination": a.path("t")}); r.code() != wire.ReadOnly {
		t.Error(r.err)
	}
}

func TestARootThatIsMadeAgain(t *testing.T) {
	a := newAgent(t)
	c := a.connect()
	a.put("f", "old")
	if err := os.RemoveAll(a.root); err != nil {
		t.Fatal(err)
	}
	if r := c.do(request{"op": "read", "path": a.path("f")}); r.code() != wire.NotFound {
		t.Fatal(r.err)
	}
	a.put("f", "new")
	if r := c.do(request{"op": "read", "path": a.path("f")}); r.reply.String() != "new" {
		t.Fatal(r.err)
	}
}
