package process

import (
	"bytes"
	"os"
	"os/user"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"sandbox-operator.dev/agent/internal/wire"
)

// Account is another user that a process shall run as.
type Account struct {
	Credential *syscall.Credential
	Env        []string
}

// LookUp finds a user by name or uid in the image's /etc/passwd and /etc/group. It gives nil for the agent's own
// user, for whom no capability is needed. The build without cgo makes os/user read exactly these files.
func LookUp(name wire.User) (*Account, error) {
	if name == "" || string(name) == strconv.Itoa(os.Getuid()) {
		return nil, nil
	}
	u, err := user.Lookup(string(name))
	if err != nil {
		u, err = user.LookupId(string(name))
	}
	if err != nil {
		uid, perr := strconv.ParseUint(string(name), 10, 32)
		if perr != nil || uid == 1<<32-1 { // -1 would mean "leave it as it is"
			return nil, wire.Fail(wire.UnsupportedUser, "the image has no user %.64q", name)
		}
		id := strconv.FormatUint(uid, 10)
		u = &user.User{Uid: id, Gid: id, Username: id, HomeDir: "/"}
	}
	uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
	gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
	if err1 != nil || err2 != nil {
		return nil, wire.Fail(wire.UnsupportedUser, "the image's /etc/passwd has no usable ids for %.64q", name)
	}
	if int(uid) == os.Getuid() {
		return nil, nil
	}
	c := &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	gids, _ := u.GroupIds()
	for _, g := range gids {
		if n, err := strconv.ParseUint(g, 10, 32); err == nil {
			c.Groups = append(c.Groups, uint32(n))
		}
	}
	return &Account{c, []string{"HOME=" + u.HomeDir, "USER=" + u.Username, "LOGNAME=" + u.Username}}, nil
}

// check refuses what could be started but not ended again, before anything starts: without CAP_KILL a cancel of
// another user's process would fail silently.
func (a *Account) check(tty bool) error {
	need := []int{unix.CAP_SETUID, unix.CAP_SETGID, unix.CAP_KILL}
	if tty {
		need = append(need, unix.CAP_CHOWN)
	}
	have := capabilities()
	for _, c := range need {
		if have&(1<<c) == 0 {
			return a.unsupported()
		}
	}
	return nil
}

func (a *Account) unsupported() error {
	return wire.Fail(wire.UnsupportedUser, "this pod may not act as uid %d", a.Credential.Uid)
}

func capabilities() uint64 {
	b, _ := os.ReadFile("/proc/self/status")
	for line := range bytes.Lines(b) {
		if v, ok := bytes.CutPrefix(line, []byte("CapEff:")); ok {
			n, _ := strconv.ParseUint(string(bytes.TrimSpace(v)), 16, 64)
			return n
		}
	}
	return 0
}
