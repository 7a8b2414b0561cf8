package world

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/onceward/onceward/lab/chaos/internal/node"
)

// Process is a node or a provider, which can be killed, paused and started again any number of times. It listens on the same
// address in all its lives.
type Process struct {
	name     string
	dir      string
	program  string
	settings node.Settings
	// environment is added to that of the next life.
	environment []string

	// acts makes those who kill, pause and start it wait for each other.
	acts  sync.Mutex
	lives int
	life  *life
	addr  string
}

// life is one run of a process.
type life struct {
	cmd   *exec.Cmd
	said  strings.Builder
	ended chan struct{}
}

// startLimit is how long a process may take until it listens. A database may be down meanwhile.
const startLimit = 60 * time.Second

// Start begins a new life, and returns when the process listens.
func (p *Process) Start() error {
	p.acts.Lock()
	defer p.acts.Unlock()
	deadline := time.Now().Add(startLimit)
	for p.life == nil {
		err := p.start()
		if err == nil {
			return nil
		}
		if p.addr == "" || time.Now().After(deadline) { // nothing was down when it started for the first time
			return fmt.Errorf("%s does not start: %w", p.name, err)
		}
		time.Sleep(100 * time.Millisecond) // its store may be about to come back
	}
	return nil
}

func (p *Process) start() error {
	p.lives++
	settings := p.settings
	settings.Name = fmt.Sprintf("%s.%d", p.name, p.lives)
	settings.Addr = "127.0.0.1:0"
	if p.addr != "" {
		settings.Addr = p.addr
	}
	if settings.Provider == nil {
		settings.Journal = filepath.Join(p.dir, settings.Name+journalSuffix)
	}
	encoded, err := json.Marshal(settings)
	if err != nil {
		return err
	}
	cmd := exec.Command(p.program)
	cmd.Env = append(append(os.Environ(), p.environment...), node.Variable+"="+string(encoded))
	// A group of its own keeps an interrupt away that is typed on the terminal, and wakes a paused process if this one dies.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	l := &life{cmd: cmd, ended: make(chan struct{})}
	cmd.Stderr = &l.said
	if _, err := cmd.StdinPipe(); err != nil { // its end tells the process that this one is gone
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	lines := bufio.NewScanner(out)
	if !lines.Scan() || !strings.HasPrefix(lines.Text(), "http://") {
		_ = cmd.Process.Kill() // it may have ended
		return errors.Join(cmd.Wait(), fmt.Errorf("it said %q and %s", lines.Text(), strings.TrimSpace(l.said.String())))
	}
	p.life = l
	if p.addr == "" { // it is the same in all lives, and read without a lock
		p.addr = strings.TrimPrefix(lines.Text(), "http://")
	}
	go func() {
		_ = cmd.Wait() // how it ended shows in what it said
		close(l.ended)
	}()
	return nil
}

// journalSuffix is how the names of journals end.
const journalSuffix = ".journal"

// Kill ends the process as a power cut would.
func (p *Process) Kill() {
	p.acts.Lock()
	defer p.acts.Unlock()
	p.kill()
}

func (p *Process) kill() {
	if p.life == nil {
		return
	}
	_ = p.life.cmd.Process.Kill() // it may have ended
	<-p.life.ended
	p.life = nil
}

// Collapsed says how the process ended if it did so by itself, which it never should.
func (p *Process) Collapsed() error {
	p.acts.Lock()
	defer p.acts.Unlock()
	if p.life == nil {
		return nil
	}
	select {
	case <-p.life.ended:
		return fmt.Errorf("%s ended by itself: %s", p.name, strings.TrimSpace(p.life.said.String()))
	default:
		return nil
	}
}

// Restart kills the process, waits, and starts it again. The change is made in between.
func (p *Process) Restart(pause time.Duration, change func(p *Process)) error {
	if err := p.Collapsed(); err != nil {
		return err
	}
	p.acts.Lock()
	alive := p.life != nil
	p.kill()
	if change != nil {
		change(p)
	}
	p.acts.Unlock()
	time.Sleep(pause)
	if err := p.Start(); err != nil || alive {
		return err
	}
	return errNotFired
}

// Sleep stops the process for a while, with all that it is at.
func (p *Process) Sleep(pause time.Duration) error {
	if err := p.Collapsed(); err != nil {
		return err
	}
	p.acts.Lock()
	defer p.acts.Unlock()
	if p.life == nil {
		return errNotFired
	}
	if err := p.life.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	time.Sleep(pause)
	return p.life.cmd.Process.Signal(syscall.SIGCONT)
}

// URL is where the process listens.
func (p *Process) URL() string { return "http://" + p.addr }
