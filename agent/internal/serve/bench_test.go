package serve

import (
	"strings"
	"testing"

	"sandbox-operator.dev/agent/internal/wire"
)

func benchmark(b *testing.B, size int64, r func(a *agent) request, content []byte) {
	a := newAgent(b)
	a.put("1k", strings.Repeat("x", 1024))
	if size > 1<<20 {
		a.put("large", strings.Repeat("x", int(size)))
	}
	c := a.connect()
	b.SetBytes(size)
	for b.Loop() {
		s := c.open(r(a))
		if content != nil {
			s.send(wire.Data, content)
			s.send(wire.End, nil)
		}
		if r := s.rest(); r.err != nil {
			b.Fatal(r.err)
		}
	}
}

func BenchmarkTrue(b *testing.B) {
	benchmark(b, 0, func(*agent) request { return request{"op": "exec", "argv": []string{"/bin/true"}} }, nil)
}

func BenchmarkEcho1K(b *testing.B) {
	word := strings.Repeat("x", 1024)
	benchmark(b, 1024, func(*agent) request { return request{"op": "exec", "argv": []string{"/bin/echo", word}} }, nil)
}

func BenchmarkRead1K(b *testing.B) {
	benchmark(b, 1024, func(a *agent) request { return request{"op": "read", "path": a.path("1k")} }, nil)
}

func BenchmarkWrite1K(b *testing.B) {
	benchmark(b, 1024, func(a *agent) request { return request{"op": "write", "path": a.path("w")} }, make([]byte, 1024))
}

func BenchmarkStat(b *testing.B) {
	benchmark(b, 0, func(a *agent) request { return request{"op": "stat", "path": a.path("1k")} }, nil)
}

func BenchmarkRead64M(b *testing.B) {
	benchmark(b, 64<<20, func(a *agent) request { return request{"op": "read", "path": a.path("large")} }, nil)
}

func BenchmarkWrite64M(b *testing.B) {
	benchmark(b, 64<<20, func(a *agent) request { return request{"op": "write", "path": a.path("w")} }, make([]byte, 64<<20))
}

func BenchmarkOutput64M(b *testing.B) {
	benchmark(b, 64<<20, func(*agent) request {
		return request{"op": "exec", "argv": []string{"head", "-c", "67108864", "/dev/zero"}}
	}, nil)
}
