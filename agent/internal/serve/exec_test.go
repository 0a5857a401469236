package serve

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"os"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"sandbox-operator.dev/agent/internal/process"
	"sandbox-operator.dev/agent/internal/wire"
)

func TestHello(t *testing.T) {
	a := newAgent(t)
	var h struct {
		Protocol       int
		Agent, Root    string
		BootID         string `json:"boot_id"`
		UID, GID, PID  int
		Grants         []map[string]any
		Unknown        json.RawMessage
		ProtocolSecond int
	}
	if err := json.Unmarshal(a.connect().do(request{"op": "hello"}).reply.Bytes(), &h); err != nil {
		t.Fatal(err)
	}
	if h.Protocol != 1 || h.BootID != table.BootID || h.Root != a.root || h.UID != os.Getuid() || h.PID != os.Getpid() ||
		len(h.Grants) != 2 || h.Grants[1]["read_only"] != true || h.Grants[0]["path"] != a.grant {
		t.Fatalf("%+v", h)
	}
}

func TestOutputIsByteExactAndSeparate(t *testing.T) {
	c := newAgent(t).connect()
	r := c.sh(`printf 'a\000\377\n'; printf 'e\n\200' >&2; exit 7`)
	if r.stdout.String() != "a\x00\xff\n" || r.stderr.String() != "e\n\x80" || *r.exit != (process.Exit{Code: 7}) {
		t.Fatalf("%q %q %+v", r.stdout.String(), r.stderr.String(), r.exit)
	}
}

func TestEndBySignal(t *testing.T) {
	c := newAgent(t).connect()
	if r := c.sh("kill -9 $$"); *r.exit != (process.Exit{Code: 137, Signal: 9}) {
		t.Fatalf("%+v", r.exit)
	}
	s := c.open(request{"op": "exec", "argv": []string{"sh", "-c", "trap 'exit 5' USR1; echo ready; while :; do sleep 0.01; done"}})
	s.next()
	s.send(wire.Signal, []byte{byte(syscall.SIGUSR1)})
	if r := s.rest(); r.exit.Code != 5 {
		t.Fatalf("%+v", r.exit)
	}
}

func TestStdin(t *testing.T) {
	c := newAgent(t).connect()
	content := make([]byte, 3<<20)
	_, _ = rand.Read(content)
	r := c.upload(request{"op": "exec", "argv": []string{"cat"}, "stdin": true}, content)
	if !bytes.Equal(r.stdout.Bytes(), content) || r.exit.Code != 0 {
		t.Fatalf("%d bytes, %+v", r.stdout.Len(), r.exit)
	}
	if r := c.sh("cat; echo done"); r.stdout.String() != "done\n" {
		t.Fatalf("without stdin: %q", r.stdout.String())
	}
	// What nobody reads harms nothing.
	if r := c.upload(request{"op": "exec", "argv": []string{"true"}, "stdin": true}, content); r.exit == nil || r.exit.Code != 0 {
		t.Fatalf("%+v", r.exit)
	}
}

func TestASignalPassesInputThatIsNotRead(t *testing.T) {
	c := newAgent(t).connect()
	s := c.open(request{"op": "exec", "argv": []string{"sleep", "100"}, "stdin": true})
	s.send(wire.Data, make([]byte, 500<<10))
	s.send(wire.Cancel, nil)
	if r := s.rest(); r.exit.Signal != int(syscall.SIGTERM) {
		t.Fatalf("%+v", r.exit)
	}
}

func TestEnvironmentAndDirectory(t *testing.T) {
	a := newAgent(t)
	c := a.connect()
	t.Setenv("AGENT_TEST", "own")
	a.put("bin/tool", "#!/bin/sh\necho tool $1\n")
	if err := os.Chmod(a.path("bin/tool"), 0o755); err != nil {
		t.Fatal(err)
	}
	if r := c.sh(`echo $AGENT_TEST $X; pwd`, request{"env": map[string]string{"X": "1"}}); r.stdout.String() != "own 1\n"+a.root+"\n" {
		t.Fatalf("%q", r.stdout.String())
	}
	if r := c.sh(`echo $AGENT_TEST; pwd`, request{"env": map[string]string{"AGENT_TEST": "new"}, "cwd": "/"}); r.stdout.String() != "new\n/\n" {
		t.Fatalf("%q", r.stdout.String())
	}
	r := c.do(request{"op": "exec", "argv": []string{"tool", "x"}, "env": map[string]string{"PATH": a.path("bin") + ":/bin:/usr/bin"}})
	if r.stdout.String() != "tool x\n" {
		t.Fatalf("PATH of the result: %q %v", r.stdout.String(), r.err)
	}
	if r := c.do(request{"op": "exec", "argv": []string{"./tool", "y"}, "cwd": a.path("bin")}); r.stdout.String() != "tool y\n" {
		t.Fatalf("relative to cwd: %q %v", r.stdout.String(), r.err)
	}
	line := `{"op":"exec","argv":["sh","-c","printf %s \"$1$V\"","sh","\udcff"],"env":{"V":"\udc80"}}` + "\n"
	if r := c.openLine(line).rest(); r.stdout.String() != "\xff\x80" {
		t.Fatalf("odd bytes: %q", r.stdout.String())
	}
}

func TestWhatCannotStart(t *testing.T) {
	a := newAgent(t)
	c := a.connect()
	a.put("data", "x")
	a.put("script", "#!/no/such/interpreter\n")
	if err := os.Chmod(a.path("script"), 0o755); err != nil {
		t.Fatal(err)
	}
	a.put("dir/x", "")
	for _, test := range []struct {
		r    request
		want wire.Code
	}{
		{request{"argv": []string{"no-such-command"}}, wire.CommandNotFound},
		{request{"argv": []string{"/no/such"}}, wire.CommandNotFound},
		{request{"argv": []string{a.path("script")}}, wire.CommandNotFound},
		{request{"argv": []string{a.path("data")}}, wire.NotExecutable},
		{request{"argv": []string{a.path("dir")}}, wire.NotExecutable},
		{request{"argv": []string{}}, wire.InvalidRequest},
		{request{"argv": []string{""}}, wire.InvalidRequest},
		{request{"argv": []string{"a\x00b"}}, wire.InvalidRequest},
		{request{"argv": []string{"true"}, "cwd": "relative"}, wire.InvalidRequest},
		{request{"argv": []string{"true"}, "cwd": "/no/such"}, wire.NotFound},
		{request{"argv": []string{"true"}, "cwd": a.path("data")}, wire.NotADirectory},
		{request{"argv": []string{"true"}, "env": map[string]string{"a=b": ""}}, wire.InvalidRequest},
		{request{"argv": []string{"true"}, "timeout_ms": -1}, wire.InvalidRequest},
		{request{"argv": []string{"true"}, "user": "no-such-user"}, wire.UnsupportedUser},
	} {
		test.r["op"] = "exec"
		if r := c.do(test.r); r.code() != test.want || r.exit != nil {
			t.Errorf("%v: %v, want %s", test.r, r.err, test.want)
		}
	}
}

func TestABackgroundChildThatHoldsThePipe(t *testing.T) {
	a := newAgent(t)
	c := a.connect()
	start := time.Now()
	r := c.sh(`(while sleep 0.05; do echo more; done; echo died >` + a.path("died") + `) & echo $!; echo done`)
	if took := time.Since(start); took > 2*time.Second {
		t.Fatalf("held up for %v", took)
	}
	pid, _ := strconv.Atoi(strings.Fields(r.stdout.String())[0])
	if !strings.Contains(r.stdout.String(), "done\n") || r.exit.Code != 0 {
		t.Fatalf("%q %+v", r.stdout.String(), r.exit)
	}
	time.Sleep(300 * time.Millisecond)
	if !alive(pid) {
		t.Fatal("the child died")
	}
	_ = syscall.Kill(pid, syscall.SIGKILL)
	eventually(t, "the orphan is reaped", func() bool { return syscall.Kill(pid, 0) == syscall.ESRCH })
}

// family starts a shell that ignores TERM, with children in its own group and in another of the same session.
const family = // job control, which makes the other group, needs bash where there is no terminal
`command -v bash >/dev/null && [ -z "$BASH" ] && exec bash -c "$0"; ` + `trap '' TERM; set -m; sleep 1000 & echo $!; set +m; sleep 1001 & echo $!; echo $$; wait; sleep 1002`

func pids(t *testing.T, s *call) []int {
	t.Helper()
	var all []int
	var text string
	for len(strings.Fields(text)) < 3 {
		kind, b := s.next()
		if kind == wire.Stdout {
			text += string(b)
		}
	}
	for _, f := range strings.Fields(text) {
		pid, err := strconv.Atoi(f)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, pid)
	}
	return all
}

func gone(t *testing.T, all []int) {
	t.Helper()
	for _, pid := range all {
		eventually(t, "process "+strconv.Itoa(pid)+" is gone", func() bool { return !alive(pid) })
	}
}

func TestTimeoutEndsTheWholeSession(t *testing.T) {
	c := newAgent(t).connect()
	start := time.Now()
	s := c.open(request{"op": "exec", "argv": []string{"sh", "-c", family, family}, "timeout_ms": 300})
	all := pids(t, s)
	r := s.rest()
	if took := time.Since(start); took < 300*time.Millisecond || took > 3*time.Second {
		t.Errorf("took %v", took)
	}
	if !r.exit.TimedOut || r.exit.Signal != int(syscall.SIGKILL) || r.exit.Code != 137 || r.exit.OOM {
		t.Errorf("%+v", r.exit)
	}
	for _, pid := range all {
		if alive(pid) {
			t.Errorf("%d is alive after the EXIT", pid)
		}
	}
	if r := c.sh("sleep 100", request{"timeout_ms": 50}); !r.exit.TimedOut || r.exit.Signal != int(syscall.SIGTERM) {
		t.Errorf("%+v", r.exit)
	}
	if r := c.sh("exit 3", request{"timeout_ms": 5000}); r.exit.TimedOut || r.exit.Code != 3 {
		t.Errorf("%+v", r.exit)
	}
}

func TestCancel(t *testing.T) {
	a := newAgent(t)
	c := a.connect().resettable()
	for how, cancel := range map[string]func(*call){
		"message": func(s *call) { s.send(wire.Cancel, nil); s.rest() },
		"reset":   func(s *call) { s.reset() },
		"close":   func(s *call) { s.conn.Close() },
	} {
		t.Run(how, func(t *testing.T) {
			s := c.open(request{"op": "exec", "argv": []string{"sh", "-c", family, family}})
			all := pids(t, s)
			cancel(s)
			gone(t, all)
		})
	}
	t.Run("lost connection", func(t *testing.T) {
		c := a.connect()
		s := c.open(request{"op": "exec", "argv": []string{"sh", "-c", family, family}})
		all := pids(t, s)
		c.conn.Close()
		gone(t, all)
	})
	t.Run("of one that floods a client that does not read", func(t *testing.T) {
		s := c.open(request{"op": "exec", "argv": []string{"sh", "-c", "echo $$; exec cat /dev/zero"}})
		_, b := s.next()
		pid, _ := strconv.Atoi(strings.Fields(string(b))[0])
		time.Sleep(200 * time.Millisecond)
		s.conn.Close()
		gone(t, []int{pid})
	})
	t.Run("of one that does not read its input", func(t *testing.T) {
		s := c.open(request{"op": "exec", "argv": []string{"sh", "-c", "echo $$; exec sleep 1000"}, "stdin": true})
		_, b := s.next()
		pid, _ := strconv.Atoi(strings.TrimSpace(string(b)))
		s.send(wire.Data, make([]byte, 3<<20))
		s.reset()
		gone(t, []int{pid})
	})
	if n := len(table.List()); n != 0 {
		eventually(t, "the table is empty", func() bool { return len(table.List()) == 0 })
	}
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func TestAStalledReaderBlocksOnlyItsOwnProcess(t *testing.T) {
	c := newAgent(t).connect()
	const total = 100_000_000
	before := heap()
	s := c.open(request{"op": "exec", "argv": []string{"head", "-c", strconv.Itoa(total), "/dev/zero"}})
	time.Sleep(500 * time.Millisecond)
	start := time.Now()
	for range 20 {
		if r := c.run("true"); r.exit.Code != 0 {
			t.Fatal(r.exit)
		}
	}
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("20 calls beside it took %v", took)
	}
	// The test's own end of the stream holds a window too.
	if grown := int64(heap()) - int64(before); grown > 24<<20 {
		t.Errorf("%d MiB are held", grown>>20)
	}
	if r := s.rest(); r.stdout.Len() != total || r.exit.Code != 0 {
		t.Fatalf("%d bytes, %+v", r.stdout.Len(), r.exit)
	}
}

// The process ends while the log is full: what is still in the pipe must not be lost to the 100 ms.
func TestTheLastBytesOfAStalledProcess(t *testing.T) {
	c := newAgent(t).connect()
	const total = 8<<20 + 12345
	for range 5 {
		s := c.open(request{"op": "exec", "argv": []string{"head", "-c", strconv.Itoa(total), "/dev/zero"}})
		time.Sleep(400 * time.Millisecond)
		if r := s.rest(); r.stdout.Len() != total {
			t.Fatalf("%d bytes of %d", r.stdout.Len(), total)
		}
	}
}

func TestManyTinyWrites(t *testing.T) {
	c := newAgent(t).connect()
	r := c.sh(`i=0; while [ $i -lt 3000 ]; do echo $i; echo e$i >&2; i=$((i+1)); done`)
	var out, err strings.Builder
	for i := range 3000 {
		out.WriteString(strconv.Itoa(i) + "\n")
		err.WriteString("e" + strconv.Itoa(i) + "\n")
	}
	if r.stdout.String() != out.String() || r.stderr.String() != err.String() {
		t.Fatal("not in order")
	}
}

type detached struct {
	ID     string `json:"id"`
	BootID string `json:"boot_id"`
}

func (c *client) detach(script string, more ...request) (*call, detached) {
	c.Helper()
	r := request{"op": "exec", "argv": []string{"sh", "-c", script}, "detach": true}
	for _, m := range more {
		for k, v := range m {
			r[k] = v
		}
	}
	s := c.open(r)
	kind, b := s.next()
	var d detached
	if kind != wire.Reply || json.Unmarshal(b, &d) != nil || d.ID == "" {
		c.Fatalf("%d %q", kind, b)
	}
	return s, d
}

func (d detached) request(op string, offset int) request {
	r := request{"op": op, "id": d.ID, "boot_id": d.BootID}
	if op == "attach" {
		r["offset"] = offset
	}
	return r
}

func ack(offset int) []byte { return binary.BigEndian.AppendUint64(nil, uint64(offset)) }

func TestADetachedProcessOutlivesItsConnection(t *testing.T) {
	a := newAgent(t)
	c := a.connect()
	s, d := c.detach(`for i in 1 2 3 4 5 6; do echo $i; echo e$i >&2; sleep 0.1; done; exit 7`)
	var got strings.Builder
	for got.Len() < 5 {
		_, b := s.next()
		got.Write(b)
	}
	s.send(wire.Ack, ack(2))
	c.conn.Close()
	time.Sleep(100 * time.Millisecond)

	c = a.connect()
	s = c.open(d.request("attach", got.Len()))
	for {
		kind, b := s.next()
		if kind == wire.Exit {
			if !strings.Contains(string(b), `"code":7`) {
				t.Fatalf("%s", b)
			}
			break
		}
		got.Write(b)
	}
	want := ""
	for i := 1; i <= 6; i++ {
		want += strconv.Itoa(i) + "\ne" + strconv.Itoa(i) + "\n"
	}
	if len(got.String()) != len(want) {
		t.Fatalf("%q", got.String())
	}
	// The EXIT may have been lost as well, so it is there once more.
	if r := c.do(d.request("attach", got.Len())); r.exit == nil || r.exit.Code != 7 {
		t.Fatalf("%+v %v", r.exit, r.err)
	}
	if r := c.do(d.request("attach", 1)); r.code() != wire.OutputLost {
		t.Fatalf("before what was acknowledged: %v", r.err)
	}
	if r := c.do(d.request("attach", got.Len()+1)); r.code() != wire.InvalidRequest {
		t.Fatalf("beyond the end: %v", r.err)
	}
	if r := c.do(d.request("kill", 0)); r.code() != "" {
		t.Fatal(r.err)
	}
	if r := c.do(d.request("attach", 0)); r.code() != wire.UnknownProcess {
		t.Fatalf("after it was forgotten: %v", r.err)
	}
	d.BootID = "another"
	for _, op := range []string{"attach", "kill"} {
		if r := c.do(d.request(op, 0)); r.code() != wire.WrongBoot {
			t.Fatalf("%s: %v", op, r.err)
		}
	}
}

func TestADetachedProcessWaitsForAcknowledgement(t *testing.T) {
	c := newAgent(t).connect()
	const total = 10_000_000
	s, d := c.detach("exec head -c " + strconv.Itoa(total) + " /dev/zero")
	n := 0
	for n < 4<<20-64<<10 { // pieces cost something beside their bytes, so it may be full a little before
		_, b := s.next()
		n += len(b)
	}
	time.Sleep(100 * time.Millisecond)
	var infos []process.Info
	if err := json.Unmarshal(c.do(request{"op": "processes"}).reply.Bytes(), &infos); err != nil || len(infos) != 1 ||
		!infos[0].Running || !infos[0].Detached || infos[0].Argv0 != "sh" || infos[0].ID != d.ID {
		t.Fatalf("%+v %v", infos, err)
	}
	s.send(wire.Ack, ack(n))
	for {
		kind, b := s.next()
		if kind == wire.Exit {
			break
		}
		n += len(b)
		s.send(wire.Ack, ack(n))
	}
	if n != total {
		t.Fatalf("%d bytes", n)
	}
	c.do(d.request("kill", 0))
}

func TestKill(t *testing.T) {
	c := newAgent(t).connect()
	s, d := c.detach("", request{"argv": []string{"sh", "-c", family, family}})
	all := pids(t, s)
	s.conn.Close()
	if r := c.do(d.request("kill", 0)); r.code() != "" || r.reply.String() != "{}" {
		t.Fatal(r.err)
	}
	for _, pid := range all {
		if alive(pid) {
			t.Errorf("%d is alive", pid)
		}
	}
	if r := c.do(request{"op": "kill", "id": "0", "boot_id": table.BootID}); r.code() != wire.UnknownProcess {
		t.Fatal(r.err)
	}
	c.do(d.request("kill", 0))
}

func TestInputAfterAttach(t *testing.T) {
	a := newAgent(t)
	c := a.connect()
	s, d := c.detach("cat; echo end", request{"stdin": true})
	s.send(wire.Data, []byte("one\n"))
	s.next()
	c.conn.Close()
	c = a.connect()
	s = c.open(d.request("attach", 4))
	s.send(wire.Data, []byte("two\n"))
	s.send(wire.End, nil)
	s.send(wire.Data, []byte("too late")) // harms nothing
	if r := s.rest(); r.stdout.String() != "two\nend\n" {
		t.Fatalf("%q %v", r.stdout.String(), r.err)
	}
	c.do(d.request("kill", 0))
}

func TestNoZombies(t *testing.T) {
	c := newAgent(t).connect()
	for range 20 {
		c.sh("(sleep 0.05 &)")
	}
	eventually(t, "nothing is left to reap", func() bool {
		matches, _ := filepath.Glob("/proc/[0-9]*/stat")
		for _, name := range matches {
			b, _ := os.ReadFile(name)
			if i := bytes.LastIndexByte(b, ')'); i > 0 {
				f := bytes.Fields(b[i+1:])
				if f[0][0] == 'Z' && string(f[1]) == strconv.Itoa(os.Getpid()) {
					return false
				}
			}
		}
		return true
	})
}

func TestTerminal(t *testing.T) {
	c := newAgent(t).connect()
	r := c.sh(`test -t 0 && test -t 1 && test -t 2 && stty size && echo $TERM`, request{"tty": true, "rows": 33, "cols": 111})
	if !strings.HasPrefix(r.stdout.String(), "33 111\r\n") || r.stderr.Len() != 0 {
		t.Fatalf("%q %q %+v", r.stdout.String(), r.stderr.String(), r.exit)
	}
	s := c.open(request{"op": "exec", "argv": []string{"sh", "-c", `trap 'stty size; exit 4' WINCH; echo ready; while :; do sleep 0.02; done`}, "tty": true, "rows": 10, "cols": 20})
	s.next()
	s.send(wire.Resize, []byte{0, 40, 0, 120})
	if r := s.rest(); r.stdout.String() != "40 120\r\n" || r.exit.Code != 4 {
		t.Fatalf("%q %+v", r.stdout.String(), r.exit)
	}
	s = c.open(request{"op": "exec", "argv": []string{"sh", "-c", "stty -echo; echo ready; cat; echo ended"}, "tty": true, "stdin": true})
	s.next()
	s.send(wire.Data, []byte("line\nbegun"))
	s.send(wire.End, nil)
	if r := s.rest(); !strings.HasSuffix(r.stdout.String(), "line\r\nbegunended\r\n") || r.exit.Code != 0 {
		t.Fatalf("%q %+v", r.stdout.String(), r.exit)
	}
	s = c.open(request{"op": "exec", "argv": []string{"sh", "-c", "echo ready; exec sleep 100"}, "tty": true, "stdin": true})
	s.next()
	s.send(wire.Data, []byte{3}) // ^C
	if r := s.rest(); r.exit.Code != 130 {
		t.Fatalf("%+v", r.exit)
	}
}

func TestAnotherUser(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can act as another user")
	}
	if _, err := user.Lookup("nobody"); err != nil {
		t.Skip("no user nobody")
	}
	a := newAgent(t)
	c := a.connect()
	r := c.sh("id -un; echo $HOME $USER", request{"user": "nobody", "cwd": "/"})
	if !strings.HasPrefix(r.stdout.String(), "nobody\n") || !strings.HasSuffix(r.stdout.String(), " nobody\n") {
		t.Fatalf("%q %q %v", r.stdout.String(), r.stderr.String(), r.err)
	}
	if r := c.sh("id -u; tty", request{"user": 65534, "cwd": "/", "tty": true}); !strings.HasPrefix(r.stdout.String(), "65534\r\n/dev/pts/") {
		t.Fatalf("%q %v", r.stdout.String(), r.err)
	}
	if r := c.sh("sleep 100", request{"user": "nobody", "cwd": "/", "timeout_ms": 100}); !r.exit.TimedOut {
		t.Fatalf("%+v", r.exit)
	}
	for _, op := range []string{"read", "write", "list", "stat", "mkdir", "remove", "archive", "extract"} {
		if r := c.do(request{"op": op, "path": a.root, "user": "nobody"}); r.code() != wire.UnsupportedUser {
			t.Errorf("%s: %v", op, r.err)
		}
	}
	if r := c.do(request{"op": "stat", "path": a.root, "user": "root"}); r.err != nil {
		t.Errorf("own user: %v", r.err)
	}
}
