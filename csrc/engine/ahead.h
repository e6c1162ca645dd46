// Ahead of the program: what is worth the most outside is written while ops run, and what is used soon is read.
//
// Both are guesses, and only cost time. Decision 15.
#pragma once

#include <vector>

#include "engine/room.h"

namespace coop {

class Ahead {
 public:
  Ahead(const Options& options, const Clock& clock, Arena& arena, Ledger& ledger, Journal& journal, Cost& cost,
        Forecast& forecast, Transfers& transfers, Room& room)
      : options_(options),
        clock_(clock),
        arena_(arena),
        ledger_(ledger),
        journal_(journal),
        cost_(cost),
        forecast_(forecast),
        transfers_(transfers),
        room_(room) {}

  // Between ops: one has run that took so long.
  void tend(Seconds cost);
  // Nothing is written or read ahead any more.
  void stop() { stopped_ = true; }

 private:
  struct WriteCandidate {
    double worth;  // of a byte, outside; or more
    Storage* storage;
    bool exact;
    bool operator<(const WriteCandidate& other) const {
      return worth != other.worth ? worth < other.worth : storage->id < other.storage->id;
    }
  };

  double worth_outside(Storage& storage, bool with_walk);
  void write();
  void read();
  Seconds latest_read() const;
  bool read_now(Storage& storage);
  Block* room_for(const Storage& storage);

  const Options& options_;
  const Clock& clock_;
  Arena& arena_;
  Ledger& ledger_;
  Journal& journal_;
  Cost& cost_;
  Forecast& forecast_;
  Transfers& transfers_;
  Room& room_;
  std::vector<WriteCandidate> candidates_;
  Seconds longest_op_ = 0;  // of late
  Seconds look_again_ = 0;  // when the first of what is outside has to be on its way
  bool stopped_ = false;
};

}  // namespace coop
