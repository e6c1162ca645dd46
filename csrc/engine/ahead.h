// Swapping ahead of the program: while ops run, storages that are worth most in the tier are
// written there, and storages that are used soon are read back.
//
// Both follow guesses. A wrong guess costs time and nothing else. Decision 15.
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

  // To be called after each op, with its cost.
  void tend(Seconds cost);
  // From now on nothing is written or read ahead.
  void stop() { stopped_ = true; }

 private:
  struct WriteCandidate {
    double worth;  // of each byte, if it were in the tier; an upper bound unless `exact`
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
  Seconds longest_op_ = 0;  // recently: it decays
  Seconds look_again_ = 0;  // when the next read has to begin, on Clock::ran
  bool stopped_ = false;
};

}  // namespace coop
