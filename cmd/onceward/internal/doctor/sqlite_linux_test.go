package doctor

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestFileSystems: where a file is that is to be kept.
func TestFileSystems(t *testing.T) {
	t.Parallel()
	for kind, want := range map[int64]string{
		unix.NFS_SUPER_MAGIC: "network file system (NFS)", unix.CIFS_SUPER_MAGIC: "network file system (CIFS)",
		unix.TMPFS_MAGIC: "in memory (tmpfs)", unix.EXT4_SUPER_MAGIC: "", unix.XFS_SUPER_MAGIC: "",
		unix.BTRFS_SUPER_MAGIC: "",
	} {
		r := new(Result)
		judgeFileSystem(r, kind)
		switch {
		case want == "" && len(r.Findings) > 0:
			t.Errorf("%#x: %s", kind, r.Findings[0].What)
		case want != "" && (len(r.Findings) != 1 || !strings.Contains(r.Findings[0].What, want)):
			t.Errorf("%#x: %v, want %s", kind, r.Findings, want)
		}
	}
}

// TestFileInMemory: a real one, which is in memory on every Linux that has the directory.
func TestFileInMemory(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("/dev/shm", "onceward-doctor-test-")
	if err != nil {
		t.Logf("only the numbers of file systems were tested: %v", err)
		return
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	r := new(Result)
	if err := tryFileSystem(t.Context(), &sqlite{dir: dir}, r); err != nil || len(r.Findings) != 1 {
		t.Errorf("found %v, %v", r.Findings, err)
	}
}

// TestForeignLog: a log that belongs to another user. Only root can make one.
func TestForeignLog(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "store.db")
	for _, name := range []string{path, path + "-wal"} {
		if err := os.WriteFile(name, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chown(path+"-wal", 12345, -1); err != nil {
		t.Logf("not tested, because only root gives files away: %v", err)
		return
	}
	r := new(Result)
	err := tryPermissions(t.Context(), &sqlite{path: path, dir: filepath.Dir(path)}, r)
	if err != nil || len(r.Findings) != 1 || !strings.Contains(r.Findings[0].What, "belongs to user 12345") {
		t.Errorf("found %v, %v", r.Findings, err)
	}
}
