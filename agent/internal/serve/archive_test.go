package serve

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"sandbox-operator.dev/agent/internal/wire"
)

// tarOf makes an archive of members that a careful writer would not make.
func tarOf(t *testing.T, members ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range members {
		content := ""
		if h.Typeflag == 0 {
			h.Typeflag = tar.TypeReg
		}
		if h.Typeflag == tar.TypeReg {
			content = h.Linkname // borrowed
			h.Linkname, h.Size = "", int64(len(content))
		}
		if h.Mode == 0 {
			h.Mode = 0o644
			if h.Typeflag == tar.TypeDir {
				h.Mode = 0o755
			}
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func file(name, content string) tar.Header { return tar.Header{Name: name, Linkname: content} }
func dir(name string) tar.Header           { return tar.Header{Name: name, Typeflag: tar.TypeDir} }
func symlink(name, target string) tar.Header {
	return tar.Header{Name: name, Linkname: target, Typeflag: tar.TypeSymlink}
}

func TestHostileArchives(t *testing.T) {
	for name, members := range map[string][]tar.Header{
		"absolute name":              {file("/etc/x", "x")},
		"dots":                       {file("../x", "x")},
		"dots within":                {file("a/../../x", "x")},
		"dots that come back":        {file("a/../x", "x")},
		"link out":                   {symlink("l", "../outside")},
		"link out from below":        {dir("d"), symlink("d/l", "../../outside")},
		"absolute link":              {symlink("l", "/etc")},
		"absolute link with dots":    {symlink("l", "ROOT/../outside")},
		"link down and up":           {symlink("l", "d/../../outside")},
		"link that needs another":    {dir("d"), dir("d/e"), symlink("d/e/up", "../.."), symlink("out", "d/e/up/../outside")},
		"beneath a link":             {dir("d"), symlink("l", "d"), file("l/x", "x")},
		"beneath an existing link":   {file("away/x", "x")},
		"beneath a link that is in":  {file("inside/x", "x")},
		"beneath a file":             {file("f", ""), file("f/x", "x")},
		"device":                     {{Name: "x", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3}},
		"block device":               {{Name: "x", Typeflag: tar.TypeBlock}},
		"FIFO":                       {{Name: "x", Typeflag: tar.TypeFifo}},
		"hard link":                  {file("f", "x"), {Name: "x", Linkname: "f", Typeflag: tar.TypeLink}},
		"hard link out":              {{Name: "x", Linkname: "/etc/passwd", Typeflag: tar.TypeLink}},
		"twice":                      {file("f", "x"), file("f", "y")},
		"twice, spelled differently": {file("f", "x"), file("./f", "y")},
		"a directory twice":          {dir("d"), dir("d/")},
		"a link then its file":       {symlink("f", "g"), file("f", "y")},
		"directory over a link":      {dir("away")},
		"root that is a file":        {file("./", "x")},
		"unknown type":               {{Name: "x", Typeflag: 'Z'}},
		"empty target":               {symlink("l", "./\x00")},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAgent(t)
			outside := strings.TrimSuffix(a.root, "workspace") + "outside"
			a.link(outside, "away")
			a.put("real/y", "")
			a.link("real", "inside")
			for i := range members {
				members[i].Linkname = strings.ReplaceAll(members[i].Linkname, "ROOT", a.root)
			}
			var content []byte
			if name == "empty target" || name == "root that is a file" {
				content = rawMember(t, members[0])
			} else {
				content = tarOf(t, members...)
			}
			r := a.connect().upload(request{"op": "extract", "path": a.root}, content)
			if r.code() != wire.InvalidArchive {
				t.Errorf("%v %s", r.err, r.reply.String())
			}
			if es, _ := os.ReadDir(outside); len(es) != 0 {
				t.Error("something was written outside")
			}
			if _, err := os.Lstat(a.path("x")); err == nil {
				t.Error("the refused member was written")
			}
			if es, _ := os.ReadDir(a.path("real")); len(es) != 1 {
				t.Error("written through a link")
			}
			if strings.Contains(a.names(), ".sandbox-upload") {
				t.Error("a temporary file is left")
			}
		})
	}
}

// rawMember writes a header that tar.Writer would refuse or normalize.
func rawMember(t *testing.T, h tar.Header) []byte {
	t.Helper()
	b := tarOf(t, file("placeholder", ""))
	block := b[:512]
	clear(block[:100])
	copy(block, h.Name)
	block[156] = tar.TypeReg
	if h.Typeflag != 0 {
		block[156] = h.Typeflag
	}
	if strings.HasSuffix(h.Name, "/") {
		block[156] = tar.TypeReg
	}
	target := strings.TrimRight(h.Linkname, "\x00")
	if h.Typeflag == tar.TypeSymlink {
		target = ""
	}
	copy(block[157:257], target)
	for i := 148; i < 156; i++ {
		block[i] = ' '
	}
	sum := 0
	for _, c := range block {
		sum += int(c)
	}
	copy(block[148:], []byte{'0' + byte(sum>>15&7), '0' + byte(sum>>12&7), '0' + byte(sum>>9&7), '0' + byte(sum>>6&7), '0' + byte(sum>>3&7), '0' + byte(sum&7), 0, ' '})
	return b
}

func TestDamagedArchives(t *testing.T) {
	a := newAgent(t)
	c := a.connect()
	whole := tarOf(t, file("f", strings.Repeat("x", 5000)))
	for name, content := range map[string][]byte{
		"junk":          bytes.Repeat([]byte("junk"), 1000),
		"cut":           whole[:2000],
		"gzip junk":     append([]byte{0x1f, 0x8b}, make([]byte, 100)...),
		"cut in a name": whole[:100],
	} {
		if r := c.upload(request{"op": "extract", "path": a.root}, content); r.code() != wire.InvalidArchive {
			t.Errorf("%s: %v", name, r.err)
		}
	}
	if a.names() != "" {
		t.Error(a.names())
	}
	s := c.open(request{"op": "extract", "path": a.root})
	s.send(wire.Data, whole[:3000])
	s.conn.Close()
	eventually(t, "nothing is left", func() bool { return a.server.streams.Load() == 0 && a.names() == "" })
	s = c.open(request{"op": "extract", "path": a.root})
	s.send(wire.Data, whole[:3000])
	s.send(wire.Cancel, nil)
	if r := s.rest(); r.code() != wire.Canceled || a.names() != "" {
		t.Error(r.err, a.names())
	}
}

func TestLinksAsTheyAreAreNotWrittenThrough(t *testing.T) {
	a := newAgent(t)
	outside := strings.TrimSuffix(a.root, "workspace") + "outside"
	c := a.connect()
	for name, members := range map[string][]tar.Header{
		"a file beneath":     {symlink("l", "../outside"), file("l/x", "x")},
		"a link beneath":     {symlink("m", outside), symlink("m/x", "/etc/passwd")},
		"a file in its name": {symlink("n", "../outside/x"), file("n", "x")},
	} {
		r := c.upload(request{"op": "extract", "path": a.root, "links_as_is": true}, tarOf(t, members...))
		if r.code() != wire.InvalidArchive {
			t.Errorf("%s: %v", name, r.err)
		}
		if es, _ := os.ReadDir(outside); len(es) != 0 {
			t.Errorf("%s: something was written outside", name)
		}
	}
	links := tarOf(t, symlink("python", "/usr/bin/python3"), dir("d"), symlink("d/round", "../x/../../y"))
	if r := c.upload(request{"op": "extract", "path": a.root, "links_as_is": true}, links); r.err != nil {
		t.Error(r.err)
	}
	for name, want := range map[string]string{"python": "/usr/bin/python3", "d/round": "../x/../../y"} {
		if got, err := os.Readlink(a.path(name)); got != want || err != nil {
			t.Errorf("%s leads to %q: %v", name, got, err)
		}
	}
}

func TestLimitsOfExtraction(t *testing.T) {
	a := newAgent(t)
	c := a.connect()
	content := tarOf(t, file("a", strings.Repeat("x", 1000)), file("b", strings.Repeat("x", 1000)), file("c", ""))
	for _, test := range []struct {
		more request
		want wire.Code
	}{
		{request{"max_bytes": 1999}, wire.TooLarge}, {request{"max_members": 2}, wire.TooLarge}, {request{"max_bytes": -1}, wire.InvalidRequest},
		{request{"max_bytes": 2000, "max_members": 3}, ""}, {request{"max_bytes": nil}, ""}, {request{"max_members": 0}, wire.TooLarge},
	} {
		test.more["op"], test.more["path"] = "extract", a.path("d")
		if r := c.upload(test.more, content); r.code() != test.want {
			t.Errorf("%v: %v", test.more, r.err)
		}
	}
	var bomb bytes.Buffer
	z := gzip.NewWriter(&bomb)
	w := tar.NewWriter(z)
	_ = w.WriteHeader(&tar.Header{Name: "bomb", Size: 1 << 40, Mode: 0o644})
	_, _ = w.Write(make([]byte, 1<<20))
	_ = z.Close()
	if r := c.upload(request{"op": "extract", "path": a.path("e"), "max_bytes": 1 << 20}, bomb.Bytes()); r.code() != wire.TooLarge {
		t.Error(r.err)
	}
	if r := c.upload(request{"op": "extract", "path": a.readOnly}, content); r.code() != wire.ReadOnly {
		t.Error(r.err)
	}
}

func TestArchiveAndExtractRoundTrip(t *testing.T) {
	a := newAgent(t)
	c := a.connect()
	a.put("src/a/b/deep", "deep")
	a.put("src/exec", "#!/bin/sh\n")
	a.put("src/odd \xff\"\\\n", "odd")
	a.put("src/"+strings.Repeat("long/", 40)+"name", "long")
	a.put("src/skipped/x", "x")
	a.put("src/a/skipped", "x")
	a.put("src/ünï", strings.Repeat("0123456789", 100_000))
	a.put("src/closed/f", "f")
	a.link("../exec", "src/a/up")
	a.link(a.path("src/a/b"), "src/a/abs")
	a.link(a.path("src"), "src/a/b/top")
	a.link("nowhere", "src/dangling")
	_ = os.Link(a.path("src/exec"), a.path("src/hard"))
	_ = syscall.Mkfifo(a.path("src/fifo"), 0o600)
	_ = os.Chmod(a.path("src/exec"), 0o751)
	_ = os.Chmod(a.path("src/closed/f"), 0o400)
	_ = os.Chmod(a.path("src/closed"), 0o555|os.ModeSetgid)
	old := time.Unix(1_000_000_000, 123_000_000)
	_ = os.Chtimes(a.path("src/exec"), old, old)
	_ = os.Chtimes(a.path("src/a"), old, old)

	r := c.do(request{"op": "archive", "path": a.path("src"), "skip": []string{"skipped", "a/skipped/"}})
	if r.err != nil || !r.ended {
		t.Fatal(r.err)
	}
	content := r.reply.Bytes()
	check := func(to string) {
		t.Helper()
		for name, want := range map[string]string{
			"a/b/deep": "deep", "exec": "#!/bin/sh\n", "odd \xff\"\\\n": "odd", strings.Repeat("long/", 40) + "name": "long", "hard": "#!/bin/sh\n",
			"ünï": strings.Repeat("0123456789", 100_000), "a/up": "#!/bin/sh\n", "a/abs/deep": "deep", "a/b/top/closed/f": "f",
		} {
			if got := a.get(to + "/" + name); got != want {
				t.Errorf("%q: %d bytes", name, len(got))
			}
		}
		for name, want := range map[string]string{"a/abs": "../a/b", "a/b/top": "../.././", "dangling": "nowhere", "a/up": "../exec"} {
			if got, _ := os.Readlink(a.path(to + "/" + name)); got != want && got+"/" != want && got+"/./" != want && strings.TrimSuffix(want, "./")+"." != got {
				t.Errorf("%s: %s", name, got)
			}
		}
		for name, want := range map[string]string{"exec": "751", "closed": "2555", "closed/f": "400"} {
			if got := a.mode(to + "/" + name); got != want {
				t.Errorf("%s: %s", name, got)
			}
		}
		for _, name := range []string{"exec", "a"} {
			if fi, _ := os.Stat(a.path(to + "/" + name)); !fi.ModTime().Equal(old) {
				t.Errorf("%s: %v", name, fi.ModTime())
			}
		}
		for _, name := range []string{"skipped", "a/skipped", "fifo"} {
			if _, err := os.Lstat(a.path(to + "/" + name)); err == nil {
				t.Errorf("%s is there", name)
			}
		}
	}
	r = c.upload(request{"op": "extract", "path": a.path("new/dst")}, content)
	if r.err != nil {
		t.Fatal(r.err)
	}
	check("new/dst")
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	_, _ = z.Write(content)
	_ = z.Close()
	// Over what is there already.
	if r := c.upload(request{"op": "extract", "path": a.path("new/dst")}, zipped.Bytes()); r.err != nil {
		t.Fatal(r.err)
	}
	check("new/dst")
	_ = os.Chmod(a.path("src/closed"), 0o755)
	_ = os.Chmod(a.path("new/dst/closed"), 0o755)
}

func TestExtractionReplacesAndStrips(t *testing.T) {
	a := newAgent(t)
	c := a.connect()
	a.put("target", "target")
	a.put("f", "old")
	a.link("target", "l")
	a.put("d/x", "")
	content := tarOf(t, dir("./ws"), file("ws/f", "new"), file("./ws/l", "file"), symlink("ws/k", "f"), file("other", "o"), symlink("ws/abs", a.root+"/f"))
	if r := c.upload(request{"op": "extract", "path": a.root, "strip_root": "ws"}, content); r.err != nil || !strings.Contains(r.reply.String(), `"members":5`) {
		t.Fatal(r.err, r.reply.String())
	}
	if a.get("f") != "new" || a.get("l") != "file" || a.get("target") != "target" || a.get("k") != "new" || a.get("other") != "o" || a.get("abs") != "new" {
		t.Error("not replaced")
	}
	if r := c.upload(request{"op": "extract", "path": a.root}, tarOf(t, file("d", ""))); r.code() != wire.IsADirectory {
		t.Error(r.err)
	}
	if r := c.upload(request{"op": "extract", "path": a.root}, tarOf(t, tar.Header{Name: "suid", Mode: 0o6755})); r.err != nil || a.mode("suid") != "755" {
		t.Error(r.err, a.mode("suid"))
	}
}

func TestArchiveOfAFileAndWhatIsNot(t *testing.T) {
	a := newAgent(t)
	c := a.connect()
	a.put("f", "content")
	r := c.do(request{"op": "archive", "path": a.path("f")})
	h, err := tar.NewReader(&r.reply).Next()
	if err != nil || h.Name != "f" || h.Size != 7 {
		t.Fatal(h, err)
	}
	for name, want := range map[string]wire.Code{"none": wire.NotFound} {
		if r := c.do(request{"op": "archive", "path": a.path(name)}); r.code() != want {
			t.Error(name, r.err)
		}
	}
	for _, skip := range []string{"/abs", "../x", ".."} {
		if r := c.do(request{"op": "archive", "path": a.root, "skip": []string{skip}}); r.code() != wire.InvalidRequest {
			t.Error(skip, r.err)
		}
	}
}
