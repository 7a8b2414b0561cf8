package modules_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestUseIn: a module whose go.mod scripts/use-in.sh has edited builds with this checkout.
func TestUseIn(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, content := range map[string]string{"go.mod": "module example.com/service\n\ngo 1.26\n", "main.go": memoryProgram} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	run := func(name string, args ...string) {
		t.Helper()
		command := exec.CommandContext(t.Context(), name, args...)
		command.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=")
		if name == "go" {
			command.Dir = dir
		}
		if out, err := command.CombinedOutput(); err != nil {
			t.Fatalf("%s %v: %v\n%s", name, args, err, out)
		}
	}
	run("sh", filepath.Join("..", "..", "scripts", "use-in.sh"), dir)
	run("go", "mod", "tidy")
	run("go", "build", "-o", filepath.Join(dir, "service.out"), ".")
}
