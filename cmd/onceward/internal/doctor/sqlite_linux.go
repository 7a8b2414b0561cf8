package doctor

import (
	"context"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// remote are the file systems whose locks and shared memory do not belong to one
// machine, and volatile the file systems in memory, by their numbers in the kernel.
var (
	remote = map[int64]string{
		unix.NFS_SUPER_MAGIC: "NFS", unix.SMB_SUPER_MAGIC: "SMB", unix.CIFS_SUPER_MAGIC: "CIFS", unix.SMB2_SUPER_MAGIC: "SMB",
		unix.V9FS_MAGIC: "9p", unix.AFS_SUPER_MAGIC: "AFS", unix.AFS_FS_MAGIC: "AFS", unix.CODA_SUPER_MAGIC: "Coda",
		unix.CEPH_SUPER_MAGIC: "Ceph", unix.NCP_SUPER_MAGIC: "NCP", unix.OCFS2_SUPER_MAGIC: "OCFS2",
	}
	volatile = map[int64]string{unix.TMPFS_MAGIC: "tmpfs", unix.RAMFS_MAGIC: "ramfs"}
)

func tryFileSystem(_ context.Context, p *sqlite, r *Result) error {
	var at unix.Statfs_t
	if err := unix.Statfs(p.dir, &at); err != nil {
		return err
	}
	judgeFileSystem(r, int64(at.Type))
	return nil
}

// judgeFileSystem adds a finding if a file system breaks a promise.
func judgeFileSystem(r *Result, kind int64) {
	kind &= 0xffffffff // some systems extend the sign
	r.saw("type %#x", kind)
	switch {
	case remote[kind] != "":
		r.find(Broken, "put the file on a local disk, or use PostgreSQL", "the file is on a network file system (%s)",
			remote[kind])
	case volatile[kind] != "":
		r.find(Broken, "put the file on a disk", "the file is in memory (%s): a restart of the machine loses it",
			volatile[kind])
	case kind == unix.FUSE_SUPER_MAGIC:
		r.find(Note, "see that it is local and that it keeps what fsync says",
			"the file is on a file system of a program (FUSE)")
	}
}

// leastSpace is the free space that must exist: for a log that has grown, and some of a day's records.
const leastSpace = 256 << 20

func trySpace(_ context.Context, p *sqlite, r *Result) error {
	var at unix.Statfs_t
	if err := unix.Statfs(p.dir, &at); err != nil {
		return err
	}
	free := int64(at.Bavail) * at.Bsize
	r.saw("%d MB free", free>>20)
	if free < leastSpace {
		r.find(Weak, "make room, or keep records for a shorter time", "%d MB are free on the disk of the file", free>>20)
	}
	return nil
}

func tryLinks(_ context.Context, p *sqlite, r *Result) error {
	info, err := os.Stat(p.path)
	if err != nil {
		return err
	}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok && stat.Nlink > 1 {
		r.find(Broken, "remove the other names (find -samefile), with the service stopped",
			"the file has %d names (hard links)", stat.Nlink)
	}
	r.saw("one name")
	return nil
}

// ownerOf returns the owner of a file.
func ownerOf(info fs.FileInfo) (uid int, ok bool) {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}
	return int(stat.Uid), true
}

// tryFileLock takes the same lock on two open files: only one of them may get it. The lock belongs to the open file, so
// that the two conflict as two processes do.
func tryFileLock(p *sqlite, r *Result, do string) error {
	var files []*os.File
	for range 2 {
		f, err := os.OpenFile(p.scratch, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }() // nothing was written
		files = append(files, f)
	}
	// SQLite does not use this byte.
	lock := unix.Flock_t{Type: unix.F_WRLCK, Start: 1 << 40, Len: 1}
	first := lock
	if err := unix.FcntlFlock(files[0].Fd(), unix.F_OFD_SETLK, &first); err != nil {
		r.find(Broken, do, "the file system has no locks: %v", err)
		return nil
	}
	second := lock
	if err := unix.FcntlFlock(files[1].Fd(), unix.F_OFD_SETLK, &second); err == nil {
		r.find(Broken, do, "two open files held the same lock at once: the locks of this file system do nothing")
	}
	return nil
}
