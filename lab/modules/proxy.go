package modules

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/mod/module"
	"golang.org/x/mod/zip"
)

// Proxy is a module proxy in a directory, as GOPROXY=file://… reads it: see https://go.dev/ref/mod#goproxy-protocol.
type Proxy string

// Add puts a version of a module into the proxy. The content has to include its go.mod.
func (p Proxy) Add(modulePath, version string, content []zip.File) error {
	escaped, err := module.EscapePath(modulePath)
	if err != nil {
		return err
	}
	dir := filepath.Join(string(p), filepath.FromSlash(escaped), "@v")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	info, err := json.Marshal(struct {
		Version string
		Time    time.Time
	}{version, time.Unix(0, 0).UTC()})
	if err != nil {
		return err
	}
	mod, err := goMod(content)
	if err != nil {
		return fmt.Errorf("modules: %s@%s: %w", modulePath, version, err)
	}
	archive, err := os.Create(filepath.Join(dir, version+".zip"))
	if err != nil {
		return err
	}
	err = zip.Create(archive, module.Version{Path: modulePath, Version: version}, content)
	return errors.Join(err, archive.Close(),
		os.WriteFile(filepath.Join(dir, version+".info"), info, 0o644),
		os.WriteFile(filepath.Join(dir, version+".mod"), mod, 0o644),
		os.WriteFile(filepath.Join(dir, "list"), []byte(version+"\n"), 0o644))
}

// AddTree puts all modules of a tree into the proxy, at one version.
func (p Proxy) AddTree(tree *Tree, version string) error {
	for _, m := range tree.Modules {
		dir := filepath.Join(tree.Root, filepath.FromSlash(m.Dir))
		content := make([]zip.File, len(m.Files))
		for i, file := range m.Files {
			content[i] = diskFile{name: file, path: filepath.Join(dir, filepath.FromSlash(file))}
		}
		if err := p.Add(m.Path, version, content); err != nil {
			return err
		}
	}
	return nil
}

func goMod(content []zip.File) ([]byte, error) {
	for _, file := range content {
		if file.Path() != "go.mod" {
			continue
		}
		opened, err := file.Open()
		if err != nil {
			return nil, err
		}
		text, err := io.ReadAll(opened)
		return text, errors.Join(err, opened.Close())
	}
	return nil, errors.New("it has no go.mod")
}

// diskFile is a file of a module that lies on the disk.
type diskFile struct{ name, path string }

func (f diskFile) Path() string                 { return f.name }
func (f diskFile) Lstat() (fs.FileInfo, error)  { return os.Lstat(f.path) }
func (f diskFile) Open() (io.ReadCloser, error) { return os.Open(f.path) }

// Sandbox runs the go command as on the machine of a user who has nothing but a proxy: without go.work, and with a
// module cache of its own, because what the proxy serves under a version changes with the tree.
type Sandbox struct {
	dir string
	env []string
}

// NewSandbox makes a sandbox in an empty directory. Modules come from the first proxy that has them: the given one,
// then what this machine has downloaded before, so that no network is needed, then the configured ones.
func NewSandbox(ctx context.Context, dir string, proxy Proxy) (*Sandbox, error) {
	out, err := output(exec.CommandContext(ctx, "go", "env", "GOMODCACHE", "GOPROXY"))
	if err != nil {
		return nil, err
	}
	cache, configured, _ := strings.Cut(strings.TrimSpace(out), "\n")
	proxies := []string{fileURL(string(proxy)), fileURL(filepath.Join(cache, "cache", "download")), configured}
	return &Sandbox{dir: dir, env: append(os.Environ(),
		"GOWORK=off", "GOPROXY="+strings.Join(proxies, ","), "GONOPROXY=none", "GOSUMDB=off", "GOTOOLCHAIN=local",
		"GOMODCACHE="+filepath.Join(dir, "modcache"),
		// A cache that cannot be removed would outlive a test; a path that is not trimmed would make every build a new one.
		"GOFLAGS=-mod=mod -modcacherw -trimpath -buildvcs=false",
	)}, nil
}

// Module makes a directory with a go.mod and the other files, given by name.
func (s *Sandbox) Module(name, goMod string, files map[string]string) (dir string, err error) {
	dir = filepath.Join(s.dir, name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	err = os.WriteFile(filepath.Join(dir, "go.mod"), []byte(goMod), 0o644)
	for file, text := range files {
		err = errors.Join(err, os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644))
	}
	return dir, err
}

// Go runs the go command in a directory and returns what it printed.
func (s *Sandbox) Go(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(s.env, "PWD="+dir)
	return output(cmd)
}

func fileURL(dir string) string { return "file://" + filepath.ToSlash(dir) }
