"""What methods are made of, in small pieces; no method by name.

adapters/      weights that adapt, in place of a linear layer's: what they are, products, injection
prompts/       prompts behind a class token, among tokens, on pixels; losses on them
views/         random views of a batch or of each image, and passes over them
segmentation/  views at several scales and labels of pixels, dropout at test time, masked maps
source/        moments of source features and distances from them; source images shown again
families/      what methods of one kind share: alignment, contrast, shifting, teaching, weighted
encoder        between the blocks of an encoder: consecutive parts, hooks
evolution      search without gradients
hog            histograms of oriented gradients
importance     which values of a parameter to hold on to
memory         features and predictions seen before, pseudo labels from the nearest
selection      which images entropy minimisation learns from, with what weight
"""
