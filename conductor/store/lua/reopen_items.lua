-- reopen_items: the next items of a reopened run begin anew. A caller that was lost is followed by the due sweep.
--! args: caller number run_id pages
--! use: partition clock token run save step each waiters ready anew
--! result: OK | MORE | ENDED | UNKNOWN, then state pokes
if told then return told end
local run = run_of(run_id)
if not run then return tell({'UNKNOWN', '', ''}) end
if ended(run) then return tell({'ENDED', run.st, ''}) end
local more = begin_items_anew(run, pages)
save_ready()
save_runs()
keep_clock()
write_all()
return tell({more and 'MORE' or 'OK', run.st, table.concat(pokes, ',')})
