package world

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/onceward/onceward/internal/proc"
	"github.com/onceward/onceward/lab/chaos/internal/node"
)

// Process is a node or a provider, which can be killed, paused and started again any number of times. It listens on the
// same address in all its lives.
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
	// life is the present run of the process, nil while there is none.
	life *proc.Process
	addr string
}

// startLimit is how long a process may take until it listens. A database may be down meanwhile.
const startLimit = 2 * time.Minute

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
	if settings.Provider == nil && settings.Caller == nil {
		settings.Journal = filepath.Join(p.dir, settings.Name+journalSuffix)
	}
	encoded, err := json.Marshal(settings)
	if err != nil {
		return err
	}
	cmd := exec.Command(p.program)
	cmd.Env = append(append(os.Environ(), p.environment...), node.Variable+"="+string(encoded))
	life, err := proc.Start(cmd)
	if err != nil {
		return err
	}
	url, err := life.Expect("http://", startLimit)
	if err != nil {
		return errors.Join(err, life.Kill())
	}
	p.life = life
	if p.addr == "" { // it is the same in all lives, and read without a lock
		p.addr = strings.TrimPrefix(url, "http://")
	}
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
	_ = p.life.Kill() // the system kills it in the end
	p.life = nil
}

// Collapsed says how the process ended if it did so by itself, which it never should.
func (p *Process) Collapsed() error {
	p.acts.Lock()
	defer p.acts.Unlock()
	if p.life == nil || !p.life.Ended() {
		return nil
	}
	return fmt.Errorf("%s ended by itself: %s", p.name, strings.TrimSpace(p.life.Stderr()))
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
	if err := p.life.Pause(); err != nil {
		return err
	}
	time.Sleep(pause)
	return p.life.Resume()
}

// URL is where the process listens.
func (p *Process) URL() string { return "http://" + p.addr }
