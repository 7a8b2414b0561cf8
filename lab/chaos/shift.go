package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/onceward/onceward/lab/chaos/internal/world"
)

// buildShifted builds a program with a clock that can be put off, and returns its path. No process can have a clock
// of its own otherwise: time.Now reads the machine's. So the program is compiled with a time package in which it adds
// what the environment says; everything else, drivers included, is as it is.
func buildShifted(ctx context.Context, dir, source string) (string, error) {
	root, err := goCommand(ctx, "env", "GOROOT")
	if err != nil {
		return "", err
	}
	original := filepath.Join(root, "src", "time", "time.go")
	standard, err := os.ReadFile(original)
	if err != nil {
		return "", err
	}
	patched, err := shiftNow(string(standard))
	if err != nil {
		return "", err
	}
	replacement, offset := filepath.Join(dir, "time.go"), filepath.Join(dir, "offset.go")
	overlay, program := filepath.Join(dir, "overlay.json"), filepath.Join(dir, "shifted")
	replaced, err := json.Marshal(map[string]any{"Replace": map[string]string{
		original: replacement, filepath.Join(filepath.Dir(original), "offset.go"): offset,
	}})
	if err != nil {
		return "", err
	}
	for path, content := range map[string]string{replacement: patched, offset: offsetSource, overlay: string(replaced)} {
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			return "", err
		}
	}
	_, err = goCommand(ctx, "build", "-overlay", overlay, "-o", program, source)
	return program, err
}

// The place in the time package where the wall clock is read.
const readsClock = "func Now() Time {\n\tsec, nsec, mono := runtimeNow()\n"

// shiftNow returns the source of the time package with a Now that is off by what the environment says.
func shiftNow(source string) (string, error) {
	if strings.Count(source, readsClock) != 1 {
		return "", fmt.Errorf("this version of Go reads the clock in another way: " +
			"start with -clocks=false, and change shiftNow")
	}
	return strings.Replace(source, readsClock, readsClock+"\tsec += clockOffset\n", 1), nil
}

// offsetSource is a file of the time package: how many seconds the clock of the process is off.
var offsetSource = fmt.Sprintf(`package time

import "syscall"

var clockOffset = func() (offset int64) {
	text, _ := syscall.Getenv(%q)
	for _, digit := range text {
		if digit >= '0' && digit <= '9' {
			offset = offset*10 + int64(digit-'0')
		}
	}
	if len(text) > 0 && text[0] == '-' {
		return -offset
	}
	return offset
}()
`, world.ShiftVariable)

func goCommand(ctx context.Context, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, "go", args...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("go %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out)), nil
}
