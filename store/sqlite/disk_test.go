package sqlite

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ncruces/go-sqlite3"
	"github.com/ncruces/go-sqlite3/vfs"

	"github.com/onceward/onceward/store"
)

// disk is a file system whose log can fail.
type disk struct {
	vfs.VFSFilename
	// How often the next flushes and writes of the log fail, and with what.
	flushes, writes atomic.Int64
	code            atomic.Uint32
	dies            atomic.Bool // after a failed flush no write succeeds
}

// OpenFilename implements [vfs.VFSFilename].
func (d *disk) OpenFilename(name *vfs.Filename, flags vfs.OpenFlag) (vfs.File, vfs.OpenFlag, error) {
	file, flags, err := d.VFSFilename.OpenFilename(name, flags)
	if err != nil {
		return nil, flags, err
	}
	return &diskFile{File: file, disk: d, log: flags&vfs.OPEN_WAL != 0}, flags, nil
}

type diskFile struct {
	vfs.File
	disk *disk
	log  bool
}

// SharedMemory implements [vfs.FileSharedMemory].
func (f *diskFile) SharedMemory() vfs.SharedMemory {
	return f.File.(vfs.FileSharedMemory).SharedMemory()
}

// Sync implements [vfs.File].
func (f *diskFile) Sync(flags vfs.SyncFlag) error {
	if f.log && f.disk.flushes.Add(-1) >= 0 {
		if f.disk.dies.Load() {
			f.disk.writes.Store(always)
		}
		return sqlite3.ExtendedErrorCode(f.disk.code.Load())
	}
	return f.File.Sync(flags)
}

// WriteAt implements [vfs.File].
func (f *diskFile) WriteAt(p []byte, off int64) (int, error) {
	if f.log && f.disk.writes.Add(-1) >= 0 {
		return 0, sqlite3.ExtendedErrorCode(f.disk.code.Load())
	}
	return f.File.WriteAt(p, off)
}

const always = 1 << 40

// fail makes the next n flushes or writes fail.
func (d *disk) fail(counter *atomic.Int64, n int64, code sqlite3.ExtendedErrorCode) {
	d.code.Store(uint32(code))
	counter.Store(n)
}

// heal ends all faults.
func (d *disk) heal() {
	d.dies.Store(false)
	d.flushes.Store(0)
	d.writes.Store(0)
}

// openOnDisk opens a store on a disk that can fail.
func openOnDisk(t testing.TB) (s *Store, d *disk, path string) {
	t.Helper()
	path = insidePath(t)
	d = &disk{VFSFilename: vfs.Find("").(vfs.VFSFilename)}
	name := "disk-of-" + strings.ReplaceAll(t.Name(), "/", "-")
	vfs.Register(name, d)
	t.Cleanup(func() { vfs.Unregister(name) })
	if _, err := createFile(path); err != nil {
		t.Fatal(err)
	}
	s = &Store{now: time.Now, busy: defaultBusyTimeout, inFlight: make(map[store.ID]chan struct{})}
	if err := s.open(t.Context(), "file:"+path+"?vfs="+name); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		d.heal()
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	createBusiness(t, s)
	return s, d, path
}
