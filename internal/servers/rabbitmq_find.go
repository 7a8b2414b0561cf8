package servers

import (
	"fmt"
	"os"
	"os/user"
	"slices"
	"strconv"
	"strings"
)

// rabbitmqInstall is what a reader of the error can paste.
const rabbitmqInstall = "apt-get update && apt-get install -y --no-install-recommends rabbitmq-server"

// rabbitmqPrograms are the two programs that a private broker needs: its own start script, and Erlang's epmd, which tells
// Erlang nodes each other's ports.
type rabbitmqPrograms struct{ server, epmd string }

// findRabbitMQ looks where Debian puts the script, the newest version first, then in the search path. The order matters:
// what Debian has in the search path is a wrapper that changes the user and the place of all files.
func findRabbitMQ(m machine) (rabbitmqPrograms, error) {
	places, err := m.glob("/usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin/rabbitmq-server")
	if err == nil {
		slices.SortFunc(places, func(a, b string) int { return slices.Compare(versionIn(b), versionIn(a)) })
	}
	if program, err := m.lookPath("rabbitmq-server"); err == nil {
		places = append(places, program)
	}
	epmd, err := m.lookPath("epmd")
	for _, server := range places {
		if err == nil && isProgram(server) {
			return rabbitmqPrograms{server: server, epmd: epmd}, nil
		}
	}
	return rabbitmqPrograms{}, fmt.Errorf("the tests need RabbitMQ's rabbitmq-server and Erlang's epmd, which are not installed here. "+
		"`make test` installs them where it can; on Debian or Ubuntu, as root:\n\n    %s\n\n"+
		"Or name a broker that is already there in %s", rabbitmqInstall, rabbitmqVariable)
}

// versionIn returns the numbers in a path in their order. As text, 3.9 would be newer than 3.12.
func versionIn(path string) (numbers []int) {
	for part := range strings.FieldsFuncSeq(path, func(r rune) bool { return r < '0' || r > '9' }) {
		number, _ := strconv.Atoi(part) // one that is too large becomes the largest
		numbers = append(numbers, number)
	}
	return numbers
}

// rabbitmqOwner is who the broker runs as: root's tests run it as the user that its package creates.
func rabbitmqOwner() (owner, error) {
	if os.Getuid() != 0 {
		return owner{}, nil
	}
	found, err := user.Lookup("rabbitmq")
	if err != nil {
		return owner{}, fmt.Errorf("RabbitMQ should not run as root and there is no user for it: %w. "+
			"The package creates the user:\n\n    %s", err, rabbitmqInstall)
	}
	uid, err := strconv.Atoi(found.Uid)
	if err != nil {
		return owner{}, err
	}
	gid, err := strconv.Atoi(found.Gid)
	return owner{uid: uid, gid: gid, other: true}, err
}
