package mutant

// fleets are mistakes of stores on engines that are, or stand for, many servers.
var fleets = []Mutant{
	{
		Name: "row-unfenced", Layer: "mysql", Store: mysql, Breaks: []string{"I3", "I6", "I7"},
		Mistake: "a record is written no matter which attempt owns it",
		Edits: []Edit{{
			"store/mysql/change.go",
			"settled_at = ?, record = ?, content = ?\n" +
				"\t\tWHERE hash = ? AND attempt = ? AND revision = ?`",
			"settled_at = ?, record = ?, content = ?\n" +
				"\t\tWHERE hash = ? AND (attempt = ? OR revision = ? OR TRUE)`",
		}},
		Faults: calm,
	},
	{
		Name: "token-for-identity", Layer: "mysql", Store: mysql, Breaks: []string{"S6"},
		Test:    Test{"github.com/onceward/onceward/store/mysql", "TestStore/conformance/LostCommit"},
		Mistake: "a token, which a process with the same clock draws too, is taken for one's own commit",
		Edits: []Edit{
			{"store/token.go", "% TokenScale)", "% 1)"},
			{
				"store/mysql/tx_transact.go", "stored.exists && stored.found.revision == x.revision",
				"stored.exists && stored.found.attempt == x.settled.Attempt",
			},
		},
	},
	{
		Name: "removed-for-undone", Layer: "mysql", Store: mysql, Breaks: []string{"S6"},
		Test:    Test{"github.com/onceward/onceward/store/mysql", "TestStore/conformance/LostCommit"},
		Mistake: "a record that is missing after a COMMIT counts as a COMMIT that failed",
		Edits:   []Edit{{"store/mysql/tx_transact.go", "asBefore && x.exists, x.undone(&rec):", "asBefore, x.undone(&rec):"}},
	},
	{
		Name: "question-unfenced", Layer: "mysql", Store: mysql, Breaks: []string{"S6"},
		Test:    Test{"github.com/onceward/onceward/store/mysql", "TestQuestionWaitsForTheCommit"},
		Mistake: "the owner of a lost COMMIT reads the record while the server is still at it",
		Edits: []Edit{{
			"store/mysql/tx_transact.go",
			"\terr := x.store.fenceClaim(ctx, x.id)\n\tif err == nil {\n\t\terr = x.store.look(ctx, x.id, &stored)\n\t}\n",
			"\terr := x.store.look(ctx, x.id, &stored)\n",
		}},
	},
	{
		Name: "loser-wins", Layer: "mysql", Store: galera, Breaks: []string{"I1", "I2", "I3"},
		Mistake: "a transaction that the cluster has refused at COMMIT counts as committed",
		Edits: []Edit{{
			"store/mysql/tx_commit.go",
			"\tif err != nil {\n\t\terr = t.failed(err)\n\t} else {",
			"\tif undone(err) {\n\t\terr = nil\n\t} else if err != nil {\n\t\terr = t.failed(err)\n\t} else {",
		}},
		Faults: []string{"server-kill", "worker-kill"},
	},
	{
		Name: "condition-dropped", Layer: "dynamodb", Store: dynamodb, Breaks: []string{"I3", "I6", "I7"},
		Mistake: "an item is written over whatever another owner has left there",
		Edits: []Edit{{
			"store/dynamodb/request.go",
			"\treturn ifStill, item{\":write\": binaryValue([]byte(over))}",
			"\treturn \"attribute_exists(\" + attrPartition + \")\", nil",
		}},
		Faults: nodesFail,
	},
}
