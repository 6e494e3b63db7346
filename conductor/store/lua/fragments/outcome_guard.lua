-- Only the holder of the fence is heard, in a run that has not ended, of the same generation.
local function answer_for(run, rec, f, generation)
  if not run then return 'LOST' end
  if run.st == RUN_CANCELLED or unbound(run) or (run.st == RUN_COMPENSATING and run.g ~= generation) then return 'CANCELLED' end
  if ended(run) or run.g ~= generation or not rec or rec.state ~= RUNNING or rec.fence ~= f then return 'LOST' end
  return 'OK'
end
