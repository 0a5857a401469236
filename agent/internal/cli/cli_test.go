package cli

import (
	"bytes"
	"encoding/json"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/yamux"

	"sandbox-operator.dev/agent/internal/version"
	"sandbox-operator.dev/agent/internal/wire"
)

// The tests run this binary again as the agent.
func TestMain(m *testing.M) {
	if os.Getenv("AGENT_TEST_MAIN") != "" {
		os.Exit(Main(os.Args[1:]))
	}
	os.Exit(m.Run())
}

func agent(t *testing.T, run string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), "AGENT_TEST_MAIN=1", "SANDBOX_RUN_DIR="+run)
	cmd.Stderr = &bytes.Buffer{}
	t.Cleanup(func() {
		if cmd.Process != nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	})
	return cmd
}

func runDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "agent")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func launch(t *testing.T, run string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := agent(t, run, args...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(2 * time.Millisecond) {
		if c, err := net.Dial("unix", run+"/agent.sock"); err == nil {
			c.Close()
			return cmd
		}
		if time.Now().After(end) {
			t.Fatalf("it does not listen: %s", cmd.Stderr)
		}
	}
}

func status(t *testing.T, cmd *exec.Cmd) int {
	t.Helper()
	timer := time.AfterFunc(15*time.Second, func() { _ = cmd.Process.Kill() })
	defer timer.Stop()
	_ = cmd.Wait()
	return cmd.ProcessState.ExitCode()
}

// pipe is the stdio of a bridge.
type pipe struct {
	io.Reader
	io.WriteCloser
}

// session is yamux through a bridge.
func session(t *testing.T, run string) (*yamux.Session, *exec.Cmd) {
	t.Helper()
	cmd := agent(t, run, "bridge")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	conf := yamux.DefaultConfig()
	conf.LogOutput = io.Discard
	s, err := yamux.Client(pipe{out, in}, conf)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s, cmd
}

func open(t *testing.T, s *yamux.Session, request string) *wire.Reader {
	t.Helper()
	st, err := s.OpenStream()
	if err != nil {
		t.Fatal(err)
	}
	_ = st.SetReadDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.WriteString(st, request+"\n"); err != nil {
		t.Fatal(err)
	}
	return wire.NewReader(st)
}

func next(t *testing.T, r *wire.Reader) (wire.Kind, string) {
	t.Helper()
	kind, _, err := r.Next()
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	if kind == wire.Stderr { // what a shell says of its children that were ended as well
		return next(t, r)
	}
	return kind, string(b)
}

func TestEveryStopSignal(t *testing.T) {
	for _, sig := range stopSignals {
		t.Run(sig.String(), func(t *testing.T) {
			t.Parallel()
			cmd := launch(t, runDir(t), "init", "--root", t.TempDir(), "--", "sleep", "1000")
			if err := cmd.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
			if code := status(t, cmd); code != 0 {
				t.Fatalf("status %d: %s", code, cmd.Stderr)
			}
		})
	}
}

func TestStopTellsClientsAndEndsEverything(t *testing.T) {
	run := runDir(t)
	cmd := launch(t, run, "init", "--root", t.TempDir(), "--grace", "0.3")
	s, _ := session(t, run)
	polite := open(t, s, `{"op":"exec","argv":["sh","-c","trap 'echo bye; exit 9' TERM; echo ready; while :; do sleep 0.01; done"]}`)
	stubborn := open(t, s, `{"op":"exec","argv":["sh","-c","trap '' TERM; (setsid sleep 1003 & echo $!); while :; do sleep 0.01; done"]}`)
	next(t, polite)
	_, text := next(t, stubborn)
	pid, err := strconv.Atoi(strings.TrimSpace(text))
	if err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	_ = cmd.Process.Signal(syscall.SIGTERM)
	if _, text := next(t, polite); text != "bye\n" {
		t.Errorf("%q", text)
	}
	if kind, text := next(t, polite); kind != wire.Exit || !strings.Contains(text, `"code":9`) {
		t.Errorf("%q", text)
	}
	if kind, text := next(t, stubborn); kind != wire.Exit || !strings.Contains(text, `"signal":9`) {
		t.Errorf("%q", text)
	}
	if code := status(t, cmd); code != 0 {
		t.Errorf("status %d", code)
	}
	t.Logf("took %v", time.Since(begun))
	if took := time.Since(begun); took < 300*time.Millisecond || took > 3*time.Second {
		t.Errorf("took %v", took)
	}
	if syscall.Kill(pid, 0) == nil {
		t.Error("something outlived the agent")
	}
}

func TestCommand(t *testing.T) {
	for script, want := range map[string]int{"exit 3": 3, "kill -9 $$": 137} {
		cmd := agent(t, runDir(t), "init", "--root", t.TempDir(), "--", "sh", "-c", script)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if code := status(t, cmd); code != want || !strings.Contains(cmd.Stderr.(*bytes.Buffer).String(), strconv.Itoa(want)) {
			t.Errorf("%s: %d, %s", script, code, cmd.Stderr)
		}
	}
	cmd := agent(t, runDir(t), "init", "--root", t.TempDir(), "--", "no-such-command")
	_ = cmd.Start()
	if code := status(t, cmd); code != 127 {
		t.Errorf("%d", code)
	}
	run, root := runDir(t), t.TempDir()
	cmd = launch(t, run, "init", "--root", root, "--", "sh", "-c", "pwd > done")
	time.Sleep(300 * time.Millisecond)
	if b, err := os.ReadFile(root + "/done"); err != nil || !strings.HasSuffix(string(b), filepath.Base(root)+"\n") {
		t.Errorf("%q %v", b, err)
	}
	s, _ := session(t, run)
	if _, text := next(t, open(t, s, `{"op":"hello"}`)); !strings.Contains(text, `"protocol":1`) {
		t.Errorf("it does not serve after its command has ended: %q", text)
	}
	_ = cmd.Process.Signal(syscall.SIGTERM)
	if code := status(t, cmd); code != 0 {
		t.Error(code)
	}
}

func TestBridges(t *testing.T) {
	run := runDir(t)
	if err := os.Chmod(run, 0o777); err != nil {
		t.Fatal(err)
	}
	ro := t.TempDir()
	cmd := launch(t, run, "init", "--root", t.TempDir(), "--grant-read-only", ro)
	if fi, err := os.Stat(run + "/agent.sock"); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", fi, err)
	}
	for range 3 {
		s, _ := session(t, run)
		_, text := next(t, open(t, s, `{"op":"hello"}`))
		var h map[string]any
		if err := json.Unmarshal([]byte(text), &h); err != nil || h["agent"] != version.Agent || !strings.Contains(text, ro) {
			t.Errorf("%q %v", text, err)
		}
	}
	// TERM of a bridge is left to the agent; the end of its stdin is its end.
	s, bridge := session(t, run)
	next(t, open(t, s, `{"op":"hello"}`))
	_ = bridge.Process.Signal(syscall.SIGTERM)
	if _, text := next(t, open(t, s, `{"op":"hello"}`)); text == "" {
		t.Error("the bridge is gone")
	}
	s.Close()
	if code := status(t, bridge); code != 0 {
		t.Errorf("%d %s", code, bridge.Stderr)
	}
	// A second agent does not take the socket of a living one.
	second := agent(t, run, "init", "--root", t.TempDir())
	_ = second.Start()
	if code := status(t, second); code != 1 {
		t.Error(code)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	none := agent(t, run, "bridge")
	var out bytes.Buffer
	none.Stdout = &out
	_ = none.Start()
	if code := status(t, none); code != 1 || out.Len() != 0 || none.Stderr.(*bytes.Buffer).Len() == 0 {
		t.Errorf("without an agent: %d %q", code, out.String())
	}
	// The socket that the dead one left is no obstacle.
	launch(t, run, "init", "--root", t.TempDir())
}

func TestInstallVersionKeeperUsage(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "bin")
	for range 2 { // again over itself
		cmd := agent(t, "", "install", dir)
		if err := cmd.Run(); err != nil {
			t.Fatal(err)
		}
	}
	es, _ := os.ReadDir(dir)
	fi, err := os.Stat(dir + "/agent")
	if err != nil || fi.Mode().Perm() != 0o755 || len(es) != 1 {
		t.Fatal(es, err)
	}
	cmd := exec.Command(dir+"/agent", "version")
	cmd.Env = []string{"AGENT_TEST_MAIN=1"}
	if out, err := cmd.Output(); err != nil || string(out) != version.Agent+"\n" {
		t.Errorf("%q %v", out, err)
	}
	keeper := agent(t, "", "keeper")
	_ = keeper.Start()
	time.Sleep(200 * time.Millisecond)
	_ = keeper.Process.Signal(syscall.SIGTERM)
	if code := status(t, keeper); code != 0 {
		t.Error(code)
	}
	for _, args := range [][]string{{}, {"x"}, {"install"}, {"init"}, {"init", "--root", "relative"}, {"init", "--root", "/tmp", "--grant", "x"}, {"init", "--root", "/tmp", "--grace", "-1"}} {
		cmd := agent(t, runDir(t), args...)
		_ = cmd.Start()
		if code := status(t, cmd); code == 0 || cmd.Stderr.(*bytes.Buffer).Len() == 0 {
			t.Errorf("%q: %d", args, code)
		}
	}
}
