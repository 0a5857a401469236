package process

import (
	"bytes"
	"os"
	"strconv"
)

// oomKills is how often the kernel has killed for want of memory in this container (cgroup v2, else v1); 0 where
// that cannot be read. The cgroup says how many, not who: when two die at once it is a guess.
func oomKills() int {
	for _, name := range []string{"/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"} {
		b, err := os.ReadFile(name)
		if err != nil {
			continue
		}
		for line := range bytes.Lines(b) {
			if v, ok := bytes.CutPrefix(line, []byte("oom_kill ")); ok {
				n, _ := strconv.Atoi(string(bytes.TrimSpace(v)))
				return n
			}
		}
	}
	return 0
}
