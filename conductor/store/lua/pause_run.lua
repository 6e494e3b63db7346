-- pause_run: running → paused. Claims stop; running attempts may commit; timers run on but start nothing.
--! args: caller number run_id reason actor only_generation
--! use: partition clock token run save
--! result: OK | QUEUED (in its lane: nothing of it runs) | ALREADY | COMPENSATING | ENDED | SUPERSEDED (it lives in another generation) | UNKNOWN, then state
if told then return told end
local run = run_of(run_id)
if not run then return tell({'UNKNOWN', ''}) end
if only_generation ~= NIL and run.g ~= tonumber(only_generation) then return tell({'SUPERSEDED', run.st}) end
if ended(run) then return tell({'ENDED', run.st}) end
if run.st == RUN_QUEUED then return tell({'QUEUED', run.st}) end
if run.st == RUN_COMPENSATING then return tell({'COMPENSATING', run.st}) end
-- A person's pause takes the place of one that would lift itself.
if run.st == RUN_PAUSED and run.wy ~= 'code_missing' then return tell({'ALREADY', run.st}) end
if run.st == RUN_PAUSED then emit(run, 'r', actor) end
emit(run, 'p', reason, actor)
set(run, 'st', RUN_PAUSED)
set(run, 'wy', reason)
save_runs()
keep_clock()
write_all()
return tell({'OK', run.st})
