package verdict

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"

	"github.com/onceward/onceward/examples/provider"
)

// ReadLedger reads all lines of a provider's ledger, also those about charges that were declined: an order that was declined
// is not lost. The provider must have ended.
func ReadLedger(path string) ([]provider.Entry, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read the ledger: %w", err)
	}
	defer file.Close()
	var entries []provider.Entry
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		var e provider.Entry
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return nil, fmt.Errorf("read the ledger, line %d: %w", len(entries)+1, err)
		}
		entries = append(entries, e)
	}
	return entries, lines.Err()
}
